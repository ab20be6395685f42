// The console: the URL says what is shown; the extender is asked again every few seconds.

import { FleetPage } from "./fleet_page.js";
import { NodePage } from "./node_page.js";
import { element } from "./page_parts.js";
import { Refused, ask, setToken } from "./queries.js";

const POLL_SECONDS = 5;
const main = document.getElementById("main");
const status = document.getElementById("status");
const DEFAULTS = { node: "", amount: "cpu_usage", sort: "value", pool: "", search: "", hot: "", stale: "" };
let page = null;
let shownNode = null;
let timer = 0;
let turn = 0;

// What the URL asks for; parameters at their default are not in it.
function readState() {
  return { ...DEFAULTS, ...Object.fromEntries(new URLSearchParams(location.hash.slice(1))) };
}

export function address(changes) {
  const state = { ...readState(), ...changes };
  const entries = Object.entries(state).filter(([name, value]) =>
    name in DEFAULTS && value !== DEFAULTS[name]);
  return `#${new URLSearchParams(entries)}`;
}

function navigate(changes, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", address(changes));
  else history.pushState(null, "", address(changes));
  show();
}

function say(text, isBad = false) {
  if (status.textContent !== text) status.textContent = text;
  status.className = isBad ? "bad" : "";
}

// Show the page that the URL names, and ask for its documents.
function show() {
  const state = readState();
  if (page === null || state.node !== shownNode) {
    const isFirst = page === null;
    page?.close?.();
    page = state.node ? new NodePage(state.node, navigate, address) : new FleetPage(navigate, address);
    shownNode = state.node;
    main.replaceChildren(page.root);
    if (!isFirst) page.heading.focus();
  }
  document.title = state.node ? `${state.node} – Springtide` : "Springtide console";
  page.update(state);
  refresh();
}

async function refresh() {
  clearTimeout(timer);
  const mine = (turn += 1);
  const asked = page;
  try {
    const documents = await asked.load(ask);
    if (mine !== turn) return;
    asked.draw(documents, readState());
    say(`As of ${new Date().toLocaleTimeString()}`);
  } catch (error) {
    if (mine !== turn) return;
    if (error instanceof Refused) return askForToken(error.message);
    say(`No answer since the last update: ${error.message}`, true);
  }
  if (!document.hidden) timer = setTimeout(refresh, POLL_SECONDS * 1000);
}

function askForToken(why) {
  say(`Refused: ${why}`, true);
  const field = element("input", { type: "password", name: "token", autocomplete: "off", required: true });
  const submit = (event) => {
    event.preventDefault();
    setToken(field.value.trim());
    page = null;
    show();
  };
  main.replaceChildren(element("form", { className: "controls", onsubmit: submit },
    element("h1", {}, "The extender asks for a token"),
    element("label", {}, "Token of extender.query_token_file", field),
    element("button", { type: "submit" }, "Continue")));
  field.focus();
}

document.getElementById("home").addEventListener("click", (event) => {
  event.preventDefault();
  navigate({ node: "" });
});
addEventListener("popstate", show);
addEventListener("hashchange", show);
addEventListener("resize", () => page?.resize());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page?.resize());
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refresh();
});
show();
