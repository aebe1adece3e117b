// Starts the page. If one of its files could not be fetched, the page is loaded again, a few times.
//
// Chromium ends all requests when a network of the machine comes or goes, and a module graph that lacks one module
// does not run. This file imports nothing, so nothing but itself can be missing when it decides.

const TRIES = "dovecote.loads";
const DELAYS = [250, 1000, 3000];

/** How often this tab loaded the page in vain; without session storage it is never loaded again. */
const tries = {
  read: () => Number(sessionStorage.getItem(TRIES) ?? 0),
  keep: (count) => sessionStorage.setItem(TRIES, String(count)),
  forget: () => sessionStorage.removeItem(TRIES),
};

function assertStyled() {
  const missing = [...document.querySelectorAll('link[rel="stylesheet"]')].find(({ sheet }) => !hasRules(sheet));
  if (missing !== undefined) throw new Error(`${missing.href} could not be fetched`);
}

/** A style sheet that was not fetched is none, an empty one, or one that may not be read: browsers differ. */
function hasRules(sheet) {
  try {
    return sheet !== null && sheet.cssRules.length > 0;
  } catch {
    return false;
  }
}

function again(error) {
  console.error(error);
  let delay;
  try {
    const count = tries.read();
    delay = DELAYS[count];
    tries.keep(count + 1);
  } catch {
    delay = undefined;
  }
  if (delay !== undefined) setTimeout(() => location.reload(), delay);
  else giveUp();
}

/** Say what is wrong in place of the page. The next load counts from zero. */
function giveUp() {
  const page = document.getElementById("page");
  if (page.querySelector("main") !== null) return; // only its styles are missing
  const button = document.createElement("button");
  button.textContent = "Load the console again";
  button.addEventListener("click", () => location.reload());
  const words = document.createElement("p");
  words.textContent = "The console could not be loaded: the gateway cannot be reached, or the network changed meanwhile.";
  const trouble = document.createElement("main");
  trouble.setAttribute("role", "alert");
  trouble.append(words, button);
  page.replaceChildren(trouble);
  try {
    tries.forget();
  } catch {
    // a browser without session storage counts nothing
  }
}

import("./app.js")
  .then(assertStyled)
  .then(() => tries.forget())
  .catch(again);
