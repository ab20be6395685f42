// Parts of pages. Text from outside becomes text nodes, and never HTML.

const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

// Text with control characters, and those that change the direction of writing, as escapes.
export function visible(text) {
  return String(text).replace(
    UNSEEN, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

// An element with properties and children: elements, or texts.
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child !== null)
    .map((child) => (child instanceof Node ? child : visible(child))));
  return made;
}

// A table. Columns are [header, whether it is an amount]; cells are texts or elements.
export function table(caption, columns, rows) {
  const kind = (index) => (columns[index][1] ? "amount" : index ? "" : "name");
  const head = columns.map(([header], index) =>
    element("th", { scope: "col", className: kind(index) }, header));
  const body = rows.map((row) => element("tr", {}, row.map((cell, index) =>
    element("td", { className: kind(index) }, cell))));
  return element("div", { className: "scroll", tabIndex: 0, role: "group", "aria-label": caption },
    element("table", {}, element("caption", {}, caption),
      element("thead", {}, element("tr", {}, head)), element("tbody", {}, body)));
}

export const UNKNOWN = "–";

export function cores(millicores) {
  return millicores === null ? UNKNOWN : (millicores / 1000).toFixed(millicores < 100000 ? 2 : 0);
}

export function gibibytes(mebibytes) {
  return mebibytes === null ? UNKNOWN : `${(mebibytes / 1024).toFixed(mebibytes < 102400 ? 2 : 0)} GiB`;
}

export function percent(share) {
  return share === null ? UNKNOWN : `${Math.round(share * 100)}%`;
}

export function age(seconds) {
  if (seconds === null) return UNKNOWN;
  const units = [[86400, "d"], [3600, "h"], [60, "m"]];
  const unit = units.find(([length]) => seconds >= 2 * length);
  return unit ? `${Math.floor(seconds / unit[0])}${unit[1]}` : `${Math.max(0, Math.round(seconds))}s`;
}
