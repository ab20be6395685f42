// The console: the URL says what is shown; the extender is asked again every few seconds.

import { FleetPage } from "./fleet_page.js";
import { NodePage } from "./node_page.js";
import { element, visible } from "./page_parts.js";
import { Refused, ask, now, setToken } from "./queries.js";

const POLL_SECONDS = 5;
const LONGEST_BACK_OFF_SECONDS = 30;
const main = document.getElementById("main");
const home = document.getElementById("home");
const asOf = document.getElementById("as-of");
const problem = document.getElementById("problem");
const DEFAULTS = { node: "", amount: "cpu_usage", sort: "value", pool: "", search: "", hot: "", stale: "", span: "3600", hide: "" };
let page = null;
let shownNode = null;
let timer = 0;
let turn = 0;
let failures = 0;

// What the URL asks for; parameters at their default are not in it.
function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  return Object.fromEntries(Object.entries(DEFAULTS).map(([name, value]) => [name, given.get(name) ?? value]));
}

export function address(changes) {
  const entries = Object.entries({ ...readState(), ...changes })
    .filter(([name, value]) => value !== DEFAULTS[name]);
  return `#${new URLSearchParams(entries)}`;
}

function navigate(changes, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", address(changes));
  else history.pushState(null, "", address(changes));
  show();
}

// A screen reader speaks this text: it changes only with the problem.
function say(text) {
  if (problem.textContent !== text) problem.textContent = text;
}

// Show the page that the URL names, and ask for its documents if it needs others.
function show() {
  const state = readState();
  const isNew = page === null || state.node !== shownNode;
  if (isNew) {
    const isFirst = page === null;
    page?.close();
    page = state.node ? new NodePage(state.node, navigate, address) : new FleetPage(navigate, address);
    shownNode = state.node;
    main.replaceChildren(page.root);
    if (!isFirst) page.heading.focus();
  }
  document.title = state.node ? `${visible(state.node)} – Springtide` : "Springtide console";
  home.href = address({ node: "" });
  if (page.update(state) || isNew) refresh();
}

async function refresh() {
  clearTimeout(timer);
  const mine = (turn += 1);
  const asked = page;
  let seconds = POLL_SECONDS;
  try {
    const documents = await asked.load(ask);
    if (mine !== turn) return;
    asked.draw(documents, readState());
    failures = 0;
    asOf.textContent = `As of ${new Date(now() * 1000).toLocaleTimeString()}`;
    say("");
  } catch (error) {
    if (mine !== turn) return;
    if (error instanceof Refused) return askForToken(error.message);
    failures += 1;
    seconds = Math.max(error.pauseSeconds ?? 0,
      Math.min(LONGEST_BACK_OFF_SECONDS, POLL_SECONDS * 2 ** failures) * (0.75 + Math.random() / 4));
    asked.tick();
    say(`No update: ${visible(error.message)}`);
  }
  if (!document.hidden) timer = setTimeout(refresh, seconds * 1000);
}

function askForToken(why) {
  page?.close();
  page = null;  // Nothing is asked for until there is a token.
  asOf.textContent = "";
  say(`Refused: ${visible(why)}`);
  const field = element("input", { type: "password", autocomplete: "off", required: true });
  const submit = (event) => {
    event.preventDefault();
    if (!setToken(field.value.trim())) return say("A token has ASCII characters only.");
    show();
    page.heading.focus();
  };
  main.replaceChildren(element("form", { className: "controls", onsubmit: submit },
    element("h1", {}, "The extender asks for a token"),
    element("label", {}, "Token of extender.query_token_file", field),
    element("button", { type: "submit" }, "Continue")));
  field.focus();
}

addEventListener("popstate", show);
addEventListener("resize", () => page?.resize());
addEventListener("online", () => page && refresh());
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page?.resize());
document.addEventListener("visibilitychange", () => {
  if (document.hidden) clearTimeout(timer);
  else if (page) refresh();
});
show();
