// What actuators did about a node, as parts of its page.

import { element, table } from "./page_parts.js";

// The last actions of node actuator, evictor and planner.
export function actionParts(actions) {
  if (actions?.problem) return [note(`Not known: ${actions.problem}`)];
  if (!actions?.items?.length) return [note("The extender has read no action of node actuator, evictor or planner.")];
  return [table("The last actions of node actuator, evictor and planner, newest first",
    [["Time", false], ["By", false], ["Action", false], ["Outcome", false], ["Changes", false], ["Why", false]],
    actions.items.map((action) => [time(action.at_seconds), action.actuator,
      action.action.replaceAll("_", " "), action.outcome, sentence(changes(action)),
      sentence([action.why, action.error].filter(Boolean).join("; "))]))];
}

function changes({ changes: listed, more_changes: more }) {
  const texts = listed.map(({ name, before, after }) => `${name}: ${before ?? "none"} → ${after ?? "none"}`);
  return [...texts, ...(more ? [`${more} more`] : [])].join("; ");
}

function time(seconds) {
  return `${new Date(seconds * 1000).toISOString().slice(0, 19)}Z`;
}

// A text that may take several lines.
function sentence(text) {
  return element("span", { className: "sentence" }, text);
}

function note(text) {
  return element("p", { className: "note" }, text);
}
