// The version of an installed package.
import { readFileSync } from "node:fs";

export const version = (name) => JSON.parse(readFileSync(new URL(`./node_modules/${name}/package.json`, import.meta.url))).version;
