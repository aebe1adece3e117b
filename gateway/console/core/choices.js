// What this browser remembers between visits: the theme, and what was read. Never a key, never a text.

const THEME = "dovecote.theme";
const READ = "dovecote.read";
const MOST_READ = 2000;
const SINCE = "*"; // the first visit: what is older counts as read

export const THEMES = ["system", "light", "dark"];

export function theme() {
  const known = localStorage.getItem(THEME);
  return THEMES.includes(known) ? known : "system";
}

/** Use a theme from now on; "system" follows the operating system. */
export function chooseTheme(name) {
  if (name === "system") localStorage.removeItem(THEME);
  else localStorage.setItem(THEME, name);
  showTheme();
}

export function showTheme() {
  if (theme() === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme();
}

function readMarks() {
  try {
    return JSON.parse(localStorage.getItem(READ)) ?? {};
  } catch {
    return {};
  }
}

function keep(marks) {
  const { [SINCE]: since, ...others } = marks;
  const kept = Object.entries(others).slice(-MOST_READ);
  localStorage.setItem(READ, JSON.stringify({ [SINCE]: since, ...Object.fromEntries(kept) }));
}

/** Count what happens from the first visit on as unread. */
export function beginReading(now) {
  const marks = readMarks();
  if (marks[SINCE] === undefined) keep({ ...marks, [SINCE]: now });
}

/** Whether a conversation was active after it was last shown here. */
export function isUnread({ id, active_at: active }) {
  const marks = readMarks();
  return Date.parse(active) > Date.parse(marks[id] ?? marks[SINCE] ?? active);
}

/** Remember that everything up to a time was shown. */
export function markRead(id, time) {
  const marks = readMarks();
  if (marks[id] !== undefined && Date.parse(marks[id]) >= Date.parse(time)) return;
  delete marks[id];
  marks[id] = time;
  keep(marks);
}
