// Checks of the page of `zonal serve` in Chromium: node check.mjs PROGRAM CHROMIUM [FOLDER]
//
// PROGRAM is the `zonal` command. It publishes a pool with four emulated nodes, which a server shows. With FOLDER,
// screenshots are written there. Exits with 1 and a list if anything is wrong.
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const [program, browserPath, screenshots] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const folder = mkdtempSync(join(tmpdir(), "zonal-browser-"));
const socket = join(folder, "pool");
const children = new Set();
const wrong = [];

function check(holds, what) {
  console.log(`${holds ? "ok    " : "WRONG "} ${what}`);
  if (!holds) wrong.push(what);
}

function start(...parameters) {
  const child = spawn(program, parameters, { stdio: ["ignore", "ignore", "pipe"] });
  children.add(child);
  child.on("exit", () => children.delete(child));
  return child;
}

async function end(child) {
  const ended = new Promise((done) => child.once("exit", done));
  child.kill("SIGTERM");
  return ended;
}

// Starts a server, and returns it with the address in the first line that it prints.
async function serve(listen, ...parameters) {
  const child = start("serve", "--pool", socket, "--interval", "0.5", "--listen", listen, ...parameters);
  let text = "";
  const url = await new Promise((found, failed) => {
    child.stderr.on("data", (part) => {
      text += part;
      if (text.includes("\n")) found(text.split("\n")[0]);
    });
    child.once("exit", () => failed(new Error(`zonal serve ended: ${text}`)));
  });
  return { child, url };
}

async function publish() {
  const pool = ["--pool", "1GiB", "--fake-nodes", "4", "--threads", "1", "--policy", "preferred:1"];
  const child = start("run", "random", ...pool, "--seconds", "600", "--publish", socket);
  while (!existsSync(socket)) {
    if (child.exitCode !== null) throw new Error("zonal run ended");
    await new Promise((done) => setTimeout(done, 20));
  }
}

// Opens the page, and collects what a good page has none of: errors, violations of the policy, requests to others.
async function open(browser, url, options) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const found = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && found.push(message.text()));
  page.on("pageerror", (error) => found.push(String(error)));
  page.on("request", (request) => {
    const target = new URL(request.url());
    if (target.protocol !== "data:" && target.origin !== new URL(url).origin) found.push(request.url());
  });
  await page.addInitScript(() => {
    window.violations = [];
    document.addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
  });
  await page.goto(url);
  return { page, found };
}

const stateIs = (page, text) => page.waitForFunction((text) => document.getElementById("state").textContent === text, text);
const shownTime = (page) => page.locator("time").getAttribute("datetime");
const later = (page, time) =>
  page.waitForFunction((time) => document.querySelector("time").getAttribute("datetime") !== time, time);
const violations = (page) => page.evaluate(() => window.violations);

async function isAccessible(page, name) {
  // The policy of the page forbids scripts of others, so axe is evaluated by the debugger.
  await page.evaluate(`(() => { ${axe}\n })()`);
  const result = await page.evaluate(() => window.axe.run());
  const list = result.violations.map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html.slice(0, 120)).join(" | ")}`);
  check(list.length === 0, `axe finds no violations (${name}, ${result.passes.length} rules)${list.map((line) => `\n       ${line}`).join("")}`);
}

async function updates(browser, url) {
  const { page, found } = await open(browser, url, { colorScheme: "light", viewport: { width: 1180, height: 900 } });
  await stateIs(page, "live");
  // The first figures have no rates; once the next have come, the layout stays.
  await later(page, await shownTime(page));
  await later(page, await shownTime(page));
  const first = await shownTime(page);
  await page.getByText("Table of zones").click();
  await page.locator(".scroll").first().focus();
  const before = await page.evaluate(() => {
    window.focused = document.activeElement;
    window.scrollTo(0, 400);
    return document.querySelector("#live").getBoundingClientRect().height;
  });
  await later(page, first);
  await later(page, await shownTime(page));
  const kept = await page.evaluate(() => ({
    focus: window.focused === document.activeElement && document.activeElement.isConnected,
    scroll: Math.round(window.scrollY),
    open: document.querySelector("details").open,
    height: document.querySelector("#live").getBoundingClientRect().height,
  }));
  check(true, "the page is updated");
  check(kept.focus && kept.open && kept.scroll === 400, "an update keeps focus, scroll position and what is open");
  check(Math.abs(kept.height - before) < 1, "an update does not move the layout");
  await isAccessible(page, "light");
  check(found.length === 0, `no errors in the console, and no requests to others ${found}`);
  check((await violations(page)).length === 0, "no violations of the content security policy");
  if (screenshots) await page.screenshot({ path: join(screenshots, "check-light.png"), fullPage: true });
  return page;
}

async function keyboard(page) {
  await page.reload();
  await stateIs(page, "live");
  await page.keyboard.press("Tab");
  check(await page.evaluate(() => document.activeElement.className === "skip" && document.activeElement.getBoundingClientRect().top >= 0), "the first stop of Tab is a visible link to the figures");
  await page.keyboard.press("Enter");
  check(await page.evaluate(() => document.activeElement.id === "content"), "the link leads to the figures");
  await page.evaluate(() => window.scrollTo({ top: 0, behavior: "instant" }));
  const heading = () => page.evaluate(() => document.activeElement.textContent.slice(0, 40));
  await page.keyboard.press("j");
  const visited = [await heading()];
  await later(page, await shownTime(page)); // an update keeps the focus
  await page.keyboard.press("j");
  visited.push(await heading());
  await page.keyboard.press("k");
  visited.push(await heading());
  check(String(visited) === "Zones and watermarks,Last 60 seconds,Zones and watermarks", `j and k go through the sections: ${visited}`);
  await page.keyboard.press("p");
  await stateIs(page, "paused");
  const time = await shownTime(page);
  await page.waitForTimeout(1200);
  check((await shownTime(page)) === time, "p pauses the updates");
  await page.keyboard.press("p");
  await stateIs(page, "live");
  await later(page, time);
  check(true, "p resumes them");
  await page.keyboard.press("?");
  check(await page.evaluate(() => document.getElementById("keys").open), "? shows the keys");
  await isAccessible(page, "keys");
  await page.keyboard.press("Escape");
  check(await page.evaluate(() => !document.getElementById("keys").open), "Escape closes them");
  // From the top, Tab reaches all controls, each with a visible focus.
  await page.evaluate(() => { document.activeElement.blur(); window.scrollTo(0, 0); });
  const stops = await page.evaluate(() => document.querySelectorAll("a, button:not([hidden]), summary, [tabindex='0']").length);
  let visible = 0;
  for (let at = 0; at < stops && at < 30; at += 1) {
    await page.keyboard.press("Tab");
    visible += await page.evaluate(() => Number(parseFloat(getComputedStyle(document.activeElement).outlineWidth) >= 2));
  }
  check(visible >= Math.min(stops, 30) - 6, `the focus is visible: ${visible} of ${stops} stops`);
}

async function restart(browser, server) {
  const { page } = await open(browser, server.url, { colorScheme: "dark", viewport: { width: 1180, height: 900 } });
  await stateIs(page, "live");
  await isAccessible(page, "dark");
  if (screenshots) await page.screenshot({ path: join(screenshots, "check-dark.png"), fullPage: true });
  const time = await shownTime(page);
  check((await end(server.child)) === 0, "SIGTERM ends the server with success");
  await stateIs(page, "not connected");
  await page.getByText("Connection lost.").waitFor();
  await isAccessible(page, "connection lost");
  const again = await serve(new URL(server.url).host);
  await stateIs(page, "live");
  await later(page, time);
  check((await page.getByText("Connection lost.").count()) === 0, "the page survives a restart of the server");
  check((await violations(page)).length === 0, "no violations of the policy in dark mode");
  return again;
}

async function narrow(browser, url) {
  for (const colorScheme of ["light", "dark"]) {
    const { page, found } = await open(browser, url, { colorScheme, viewport: { width: 360, height: 740 }, reducedMotion: "reduce" });
    await stateIs(page, "live");
    const widths = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
    check(widths[0] <= widths[1], `360 pixels are enough (${colorScheme}): ${widths}`);
    await isAccessible(page, `narrow, ${colorScheme}`);
    const background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    const expected = colorScheme === "light" ? "rgb(255, 255, 255)" : "rgb(24, 27, 32)";
    check(background === expected, `the background is that of ${colorScheme} mode: ${background}`);
    check(found.length === 0, `no errors on a narrow screen ${found}`);
    if (screenshots) await page.screenshot({ path: join(screenshots, `check-narrow-${colorScheme}.png`), fullPage: true });
  }
}

async function withoutScripts(browser, url) {
  const context = await browser.newContext({ javaScriptEnabled: false });
  const page = await context.newPage();
  await page.goto(url);
  check((await page.locator("h2").count()) >= 7, "the page has its figures without scripts");
  check(await page.locator("noscript p").isVisible(), "and says that it is not updated");
  check(!(await page.locator("#pause").isVisible()), "and has no buttons without use");
}

async function token(browser) {
  const file = join(folder, "token");
  const { writeFileSync } = await import("node:fs");
  writeFileSync(file, "0123456789abcdefghij\n", { mode: 0o600 });
  const server = await serve("127.0.0.1:0", "--token-file", file);
  const context = await browser.newContext();
  const page = await context.newPage();
  check((await page.goto(server.url)).status() === 401, "a server with a token refuses others");
  await page.goto(`${server.url}?token=0123456789abcdefghij`);
  check(page.url() === server.url, "the address with the token leads to the address without it");
  await stateIs(page, "live");
  check(true, "and the page is updated");
  await end(server.child);
}

const start_ms = Date.now();
let browser;
try {
  await publish();
  browser = await chromium.launch({ executablePath: browserPath, args: ["--no-sandbox"] });
  let server = await serve("127.0.0.1:0");
  const page = await updates(browser, server.url);
  await keyboard(page);
  server = await restart(browser, server);
  await narrow(browser, server.url);
  await withoutScripts(browser, server.url);
  await token(browser);
} catch (error) {
  wrong.push(String(error));
  console.log(error);
} finally {
  await browser?.close();
  for (const child of children) child.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
}
console.log(`${wrong.length} wrong, ${((Date.now() - start_ms) / 1000).toFixed(1)} s`);
process.exit(wrong.length === 0 ? 0 : 1);
