// Requests that are made again: a change of the network ends those that are just connecting.

/**
 * The result of `attempt`, which is called again after each of `delays` (milliseconds) while its error `isLost`.
 * `attempt` is given the number of the attempt, from 0. `pause` is for tests.
 */
export async function retryLost(attempt, { delays, isLost, pause = wait }) {
  for (const [count, delay] of delays.entries()) {
    try {
      return await attempt(count);
    } catch (error) {
      if (!isLost(error)) throw error;
      await pause(delay);
    }
  }
  return attempt(delays.length);
}

function wait(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}
