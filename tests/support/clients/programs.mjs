// Run programs of packages.
import { execFile } from "node:child_process";
import { promisify } from "node:util";

const LIMIT = 150_000;

// Return what a program prints; without a terminal, and with nothing to read.
export async function run(name, args, env = {}) {
  const running = promisify(execFile)(`node_modules/.bin/${name}`, args, { env: { ...process.env, ...env }, timeout: LIMIT });
  running.child.stdin.end();
  const { stdout, stderr } = await running;
  return stdout + stderr;
}
