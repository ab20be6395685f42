// The fleet on a canvas: a cell a node, coloured by a share of allocatable.

// Cividis: even steps of lightness, also for the colour-blind.
const RAMP = ["00204d", "00336f", "39486b", "575c6d", "707173", "8a8779", "a69d75", "c4b56c",
  "e4cf5b", "ffea46"].map((hex) => [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16)));
const HEIGHT = 420;
const SMALLEST = 6;
const LARGEST = 36;

export function colour(share) {
  const at = Math.min(Math.max(share, 0), 1) * (RAMP.length - 1);
  const low = Math.min(Math.floor(at), RAMP.length - 2);
  const mixed = RAMP[low].map((part, i) => Math.round(part + (at - low) * (RAMP[low + 1][i] - part)));
  return `rgb(${mixed.join(",")})`;
}

// Draw the key of the colours into a canvas.
export function drawKey(canvas) {
  const context = canvas.getContext("2d");
  for (let x = 0; x < canvas.width; x += 1) {
    context.fillStyle = colour(x / (canvas.width - 1));
    context.fillRect(x, 0, 1, canvas.height);
  }
}

// Size and columns of the cells for so many nodes on so many pixels.
export function layout(nodes, width) {
  const size = Math.max(SMALLEST, Math.min(LARGEST,
    Math.floor(Math.sqrt((width * HEIGHT) / Math.max(nodes, 1)))));
  const columns = Math.max(1, Math.floor(width / size));
  return { size, columns, rows: Math.max(1, Math.ceil(nodes / columns)) };
}

// Draw the nodes. `cells` has {share, hot, stale} in order; `focus` is the index that stands out.
export function draw(canvas, cells, focus) {
  const width = Math.floor(canvas.parentElement.clientWidth);
  const grid = layout(cells.length, width);
  const ratio = window.devicePixelRatio || 1;
  const height = grid.rows * grid.size;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const style = getComputedStyle(canvas);
  const [faint, ink, back, gap] = ["--faint", "--ink", "--back", "--line"].map((n) => style.getPropertyValue(n));
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  const inner = grid.size - 1, dot = Math.max(2, Math.round(inner / 4)), middle = (inner - dot) / 2;
  context.fillStyle = gap;  // Dark cells have an edge on a dark page, and light ones on a light page.
  const full = Math.floor(cells.length / grid.columns);
  context.fillRect(0, 0, grid.columns * grid.size, full * grid.size);
  context.fillRect(0, full * grid.size, (cells.length % grid.columns) * grid.size, grid.size);
  cells.forEach((cell, index) => {
    const x = (index % grid.columns) * grid.size, y = Math.floor(index / grid.columns) * grid.size;
    // The middle of the ramp is grey, so that grey cannot stand for unknown.
    const isKnown = cell.share !== null && !cell.stale;
    context.fillStyle = isKnown ? colour(cell.share) : back;
    context.fillRect(x, y, inner, inner);
    if (cell.stale) {
      line(context, faint, 1, x, y + inner, x + inner, y);
    } else if (!isKnown) {
      context.fillStyle = faint;
      context.fillRect(x + middle, y + middle, dot, dot);
    }
    if (cell.hot) {  // A mark that shows on every colour of the ramp.
      const side = Math.max(4, Math.round(inner * 0.4));
      context.fillStyle = "#000";
      context.fillRect(x + inner - side, y, side, side);
      context.fillStyle = "#fff";
      context.fillRect(x + inner - side + 1, y + 1, side - 2, side - 2);
    }
  });
  if (focus >= 0 && focus < cells.length) {
    const x = (focus % grid.columns) * grid.size, y = Math.floor(focus / grid.columns) * grid.size;
    frame(context, back, 5, x, y, inner);
    frame(context, ink, 2, x, y, inner);
  }
  return grid;
}

function line(context, style, width, ...[fromX, fromY, toX, toY]) {
  context.strokeStyle = style;
  context.lineWidth = width;
  context.beginPath();
  context.moveTo(fromX, fromY);
  context.lineTo(toX, toY);
  context.stroke();
}

function frame(context, style, width, x, y, size) {
  context.strokeStyle = style;
  context.lineWidth = width;
  context.strokeRect(x, y, size, size);
}
