// Moments from the time on a clock of a time zone.

const WALL = /^(\d{4})-(\d{2})-(\d{2})[T ](\d{1,2}):(\d{2})(?::(\d{2}))?$/;

/** The moment of a time such as `2030-01-31 09:00` in a time zone; a time with an offset says it itself. Null if neither. */
export function momentOf(text, zone) {
  const parts = WALL.exec(text.trim());
  if (parts === null) {
    const moment = /(?:Z|[+-]\d{2}:\d{2})$/i.test(text.trim()) ? Date.parse(text.trim()) : NaN;
    return Number.isNaN(moment) ? null : new Date(moment);
  }
  const [year, month, day, hour, minute, second = 0] = parts.slice(1).filter(Boolean).map(Number);
  const wall = Date.UTC(year, month - 1, day, hour, minute, second);
  const read = new Date(wall);
  if ([read.getUTCMonth() + 1, read.getUTCDate(), read.getUTCHours(), read.getUTCMinutes()].join() !== [month, day, hour, minute].join()) return null;
  try {
    const guess = wall - offset(wall, zone);
    return new Date(wall - offset(guess, zone));
  } catch {
    return null;
  }
}

/** How far a zone's clock is ahead of UTC at a moment, in milliseconds. */
function offset(moment, zone) {
  const format = new Intl.DateTimeFormat("en-US", {
    timeZone: zone, hourCycle: "h23", year: "numeric", month: "numeric", day: "numeric", hour: "numeric", minute: "numeric", second: "numeric",
  });
  const at = Object.fromEntries(format.formatToParts(moment).map(({ type, value }) => [type, Number(value)]));
  return Date.UTC(at.year, at.month - 1, at.day, at.hour, at.minute, at.second) - Math.floor(moment / 1000) * 1000;
}
