// Modules that are fetched when they are needed, again if that failed: a request can end with the network.

import { retryLost } from "./retry.js";

const DELAYS = [250, 1000, 3000];

/**
 * The module at an address. A browser may keep the failure of an address, so each further try asks for another one.
 * `fetchModule` and `pause` are for tests.
 */
export function importModule(url, { fetchModule = (address) => import(address), pause } = {}) {
  const attempt = (count) => fetchModule(count === 0 ? url : `${url}?try=${count}`);
  return retryLost(attempt, { delays: DELAYS, isLost: isFetchFailure, pause });
}

/** Browsers report a module that was not fetched, or one of its imports, as a TypeError; a module's own faults differ. */
function isFetchFailure(error) {
  return error instanceof TypeError && /import|module|fetch|load/i.test(error.message);
}
