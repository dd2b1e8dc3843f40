// Replaces the fragment of the page with each update of the server, in place: elements that stay keep their focus, their
// scroll position, and whether they are open.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const live = byId("live"), state = byId("state"), connection = byId("connection"), pause = byId("pause");
  const keys = byId("keys"), useKeys = byId("use-keys");
  const RETRY_MS = 2000;
  let source = null, retry = 0, isPaused = false, latest = null;

  // Makes `old` equal to `fresh`, without replacing elements of the same kind.
  function morph(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.nodeValue = fresh.nodeValue;
      return;
    }
    // The reader decides what is open, and a heading with the focus keeps it.
    const isKept = (name) =>
      (name === "open" && old.localName === "details") || (name === "tabindex" && old === document.activeElement);
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && !isKept(name)) old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (old.getAttribute(name) !== value && !isKept(name)) old.setAttribute(name, value);
    }
    morphChildren(old, fresh);
  }

  function morphChildren(old, fresh) {
    const before = [...old.childNodes];
    const after = [...fresh.childNodes];
    after.forEach((child, at) => {
      const match = before[at];
      if (!match) old.append(child);
      else if (match.nodeName === child.nodeName && match.id === child.id) morph(match, child);
      else match.replaceWith(child);
    });
    before.slice(after.length).forEach((child) => child.remove());
  }

  function show(html) {
    latest = null;
    const fresh = new DOMParser().parseFromString(html, "text/html").body;
    morphChildren(live, fresh);
  }

  function setState(kind, text) {
    state.className = kind;
    if (state.textContent !== text) state.textContent = text;
  }

  function showState(isConnected) {
    if (!isConnected) setState("lost", "not connected");
    else if (isPaused) setState("still", "paused");
    else setState("live", "live");
  }

  function banner(strong, text) {
    const shown = connection.textContent;
    if (shown === strong + " " + text) return;
    connection.replaceChildren();
    if (!strong) return;
    const line = document.createElement("p"), name = document.createElement("strong");
    line.className = "banner";
    name.textContent = strong;
    line.append(name, " " + text);
    connection.append(line);
  }

  // Says why the stream cannot be opened, as far as an ordinary request shows it.
  async function explain() {
    showState(false);
    let text = "These are the last figures. Trying again until zonal serve answers.";
    try {
      const answer = await fetch("/snapshot.json", { method: "HEAD", cache: "no-store" });
      if (answer.status === 401) text = "The token is not valid any more. Open the address that zonal serve has printed.";
      else if (answer.ok) text = "The server may have too many open pages. Close one of them.";
    } catch {
      // The server does not answer at all.
    }
    if (!source || source.readyState !== EventSource.OPEN) banner("Connection lost.", text);
  }

  function open() {
    close();
    source = new EventSource("/events");
    source.addEventListener("open", () => {
      banner("", "");
      showState(true);
    });
    source.addEventListener("tick", (event) => {
      if (isPaused) latest = event.data;
      else show(event.data);
    });
    source.addEventListener("error", () => {
      explain();
      // Browsers reconnect after a lost connection, but not after an answer with an error.
      if (source && source.readyState === EventSource.CLOSED) retry = setTimeout(open, RETRY_MS);
    });
  }

  function close() {
    clearTimeout(retry);
    if (source) source.close();
    source = null;
  }

  function setPaused(value) {
    isPaused = value;
    pause.setAttribute("aria-pressed", String(value));
    pause.textContent = value ? "Resume" : "Pause";
    if (!value && latest !== null) show(latest);
    if (source && source.readyState === EventSource.OPEN) showState(true);
  }

  // Goes to the next section, or to the one before, and gives it the focus. Starts at the section with the focus, or at
  // the one at the top of the window.
  function go(step) {
    const heads = [...document.querySelectorAll("main h1, main h2")];
    const margin = parseFloat(getComputedStyle(document.documentElement).scrollPaddingTop) + 4;
    const isAbove = (head) => head.getBoundingClientRect().top < margin;
    const focused = heads.indexOf(document.activeElement);
    const at = focused >= 0 ? focused : Math.max(0, heads.filter(isAbove).length - 1);
    const target = heads[Math.max(0, at + step)];
    if (!target) return;
    target.tabIndex = -1;
    target.focus({ preventScroll: true });
    target.scrollIntoView();
  }

  const actions = {
    p: () => setPaused(!isPaused),
    j: () => go(1),
    k: () => go(-1),
    "?": () => keys.showModal(),
  };

  function storedKeys(value) {
    try {
      if (value !== undefined) localStorage.setItem("zonal-keys", value);
      return localStorage.getItem("zonal-keys");
    } catch {
      return null; // storage is blocked; the setting lasts as long as the page
    }
  }

  useKeys.checked = storedKeys() !== "off";
  useKeys.addEventListener("change", () => storedKeys(useKeys.checked ? "on" : "off"));
  document.addEventListener("keydown", (event) => {
    const isText = event.target instanceof Element && event.target.closest("input, textarea, select");
    if (event.ctrlKey || event.altKey || event.metaKey || isText || keys.open || !useKeys.checked) return;
    const action = Object.hasOwn(actions, event.key) && actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  pause.addEventListener("click", () => setPaused(!isPaused));
  byId("show-keys").addEventListener("click", () => keys.showModal());
  pause.hidden = byId("show-keys").hidden = false;
  // A page that is not visible needs no updates, and browsers limit the connections to one server.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  if (!document.hidden) open();
})();
