// Memory over time: bands on a canvas, and what the pointer or the arrow keys find in them.

const WHOLE = 1e6;

const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches;
const colorOf = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/** The bands from the bottom up, with their names and colours. The same for all plans. */
function makeLayers() {
  const dark = isDark();
  const plain = { constant: dark ? "#5d6772" : "#a3abb5", input: dark ? "#6f5a86" : "#b39cc7", scratch: dark ? "#7d4257" : "#e3a9bd" };
  const ramps = { activation: { from: 220, to: 168, full: 52, light: 42 }, gradient: { from: 24, to: 46, full: 78, light: 52 } };
  const seen = { activation: 0, gradient: 0 };
  const count = (kind) => data.layers.filter((layer) => layer.kind === kind).length;
  const colorOfNext = ({ kind, row }) => {
    const { from, to, full, light } = ramps[kind];
    const at = seen[kind];
    seen[kind] += 1;
    const share = count(kind) > 1 ? at / (count(kind) - 1) : 0;
    // Neighbours differ, and sums of several values are paler.
    const shade = light + (at % 2 ? 7 : 0) + share * 6 - (dark ? 12 : 0) + (row === null && !dark ? 18 : 0);
    return `hsl(${from + (to - from) * share} ${row === null ? full * 0.6 : full}% ${shade}%)`;
  };
  return data.layers.map((layer) => ({ ...layer, name: layerName(layer), color: plain[layer.kind] ?? colorOfNext(layer) }));
}

/** For each bin, where each layer ends, from 0 upwards. What a device does not hold is cut off at the top. */
function stack({ bins }) {
  const count = bins.starts.length;
  const stride = bins.layers.length + 1;
  const ends = new Float64Array(count * stride);
  bins.layers.forEach((changes, layer) => {
    changes.forEach(([from, bytes], at) => {
      const until = at + 1 < changes.length ? changes[at + 1][0] : count;
      for (let bin = from; bin < until; bin += 1) ends[bin * stride + layer + 1] = bytes;
    });
  });
  for (let bin = 0; bin < count; bin += 1) {
    let sum = 0;
    for (let at = bin * stride + 1; at < (bin + 1) * stride; at += 1) {
      sum += ends[at];
      ends[at] = Math.min(sum, bins.held[bin]);
    }
  }
  return ends;
}

class MemoryPicture {
  constructor(figure, label) {
    this.figure = figure;
    this.label = label;
    this.plot = figure.querySelector(".plot");
    [this.base, this.top] = [element("canvas"), element("canvas")];
    this.plot.append(this.base, this.top);
    Object.assign(this.base, { tabIndex: 0 });
    this.base.setAttribute("role", "img");
    this.cursor = null;
    this.listen();
  }

  show(view, budget, scale, layers) {
    Object.assign(this, { view, budget, scale, layers, ends: stack(view), cursor: null });
    const overhead = overheadOf(view);
    const added = view.again > 0 ? ` (${percentText(overhead)}), ${counted(view.again, "operation", "operations")} again` : "";
    this.figure.querySelector(".figures").textContent = `${bytesText(view.peak)} at most, ${timeText(view.makespan)}${added}`;
    this.base.setAttribute("aria-label", `${this.label}: memory over time. At most ${bytesText(view.peak)}, ` +
      `${timeText(view.makespan)}${added}. Arrow keys read it out.`);
    this.draw();
  }

  draw() {
    const width = this.plot.clientWidth;
    const narrow = width < 600;
    const depths = this.view.stages.reduce((most, span) => Math.max(most, span.depth + 1), 0);
    const lanes = Math.min(depths, narrow ? 1 : 3);
    const plotHeight = narrow ? 190 : Math.max(190, Math.min(270, (innerHeight - 330) / 2 - 15 * lanes));
    this.area = { left: narrow ? 50 : 58, top: 8, width: 0, height: plotHeight };
    this.area.width = width - this.area.left - 8;
    this.lanes = lanes;
    const height = this.area.top + plotHeight + 11 + 15 * lanes + 20;
    const density = devicePixelRatio || 1;
    for (const canvas of [this.base, this.top]) {
      canvas.width = Math.round(width * density);
      canvas.height = Math.round(height * density);
      canvas.style.height = `${height}px`;
      canvas.getContext("2d").setTransform(density, 0, 0, density, 0, 0);
    }
    const context = this.base.getContext("2d");
    context.clearRect(0, 0, width, height);
    drawGround(context, this);
    this.drawBands(context, density);
    drawAxes(context, this);
    this.point();
  }

  x(millionths) {
    return this.area.left + (millionths / WHOLE) * (this.view.makespan / this.scale.time) * this.area.width;
  }

  y(bytes) {
    return this.area.top + this.area.height * (1 - bytes / this.scale.bytes);
  }

  end(bin) {
    const { starts } = this.view.bins;
    return bin + 1 < starts.length ? starts[bin + 1] : WHOLE;
  }

  drawBands(context, density) {
    const snap = (at) => Math.round(at * density) / density;
    const { starts } = this.view.bins;
    const stride = this.layers.length + 1;
    const edge = colorOf("panel");
    for (let bin = 0; bin < starts.length; bin += 1) {
      const from = snap(this.x(starts[bin]));
      const width = Math.max(snap(this.x(this.end(bin))) - from, 1 / density);
      for (let layer = 0; layer < this.layers.length; layer += 1) {
        const [low, high] = [this.ends[bin * stride + layer], this.ends[bin * stride + layer + 1]];
        if (high <= low) continue;
        const [bottom, top] = [this.y(low), this.y(high)];
        context.fillStyle = this.layers[layer].color;
        context.fillRect(from, top, width, bottom - top);
        if (bottom - top > 3) {
          context.globalAlpha = 0.45;
          context.fillStyle = edge;
          context.fillRect(from, top, width, 0.75);
          context.globalAlpha = 1;
        }
      }
    }
  }

  listen() {
    const canvas = this.base;
    const follow = (event) => {
      const box = canvas.getBoundingClientRect();
      this.cursor = this.find(event.clientX - box.left, event.clientY - box.top);
      this.point();
      showTip(this.cursor && this.told(), event.clientX, event.clientY);
    };
    const leave = () => {
      this.cursor = null;
      this.point();
      showTip(null);
    };
    canvas.addEventListener("pointermove", follow);
    canvas.addEventListener("pointerdown", follow);
    canvas.addEventListener("pointerleave", leave);
    canvas.addEventListener("blur", leave);
    canvas.addEventListener("keydown", (event) => this.key(event));
  }

  find(x, y) {
    const { starts } = this.view.bins;
    const millionths = ((x - this.area.left) / this.area.width) * (this.scale.time / this.view.makespan) * WHOLE;
    if (!(millionths >= 0 && millionths <= WHOLE)) return null;
    let [low, high] = [0, starts.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (starts[middle] <= millionths) low = middle;
      else high = middle - 1;
    }
    const bytes = (1 - (y - this.area.top) / this.area.height) * this.scale.bytes;
    const stride = this.layers.length + 1;
    const layer = this.layers.findIndex((_, at) => bytes >= this.ends[low * stride + at] && bytes < this.ends[low * stride + at + 1]);
    return { bin: low, layer: bytes >= 0 && layer >= 0 ? layer : null };
  }

  key(event) {
    const count = this.view.bins.starts.length;
    const cursor = this.cursor || { bin: 0, layer: null };
    const jump = event.shiftKey ? 20 : 1;
    const held = this.layers.map((_, layer) => layer).filter((layer) => this.bytesOf(cursor.bin, layer) > 0);
    const rank = held.indexOf(cursor.layer);
    const moves = {
      ArrowRight: () => ({ bin: Math.min(count - 1, this.cursor ? cursor.bin + jump : 0), layer: cursor.layer }),
      ArrowLeft: () => ({ bin: Math.max(0, cursor.bin - jump), layer: cursor.layer }),
      Home: () => ({ bin: 0, layer: cursor.layer }),
      End: () => ({ bin: count - 1, layer: cursor.layer }),
      ArrowUp: () => ({ bin: cursor.bin, layer: held[Math.min(held.length - 1, rank + 1)] ?? null }),
      ArrowDown: () => ({ bin: cursor.bin, layer: rank > 0 ? held[rank - 1] : null }),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    this.cursor = moves[event.key]();
    if (this.cursor.layer !== null && this.bytesOf(this.cursor.bin, this.cursor.layer) <= 0) this.cursor.layer = null;
    this.point();
    const told = this.told();
    const box = this.base.getBoundingClientRect();
    showTip(told, box.left + this.x(this.view.bins.starts[this.cursor.bin]), box.top + 40);
    byId("announcer").textContent = told.map((line) => line.text).join(". ");
  }

  bytesOf(bin, layer) {
    const at = bin * (this.layers.length + 1) + layer;
    return this.ends[at + 1] - this.ends[at];
  }

  /** Draws what the cursor is at. */
  point() {
    const context = this.top.getContext("2d");
    context.clearRect(0, 0, this.top.width, this.top.height);
    const layer = this.cursor?.layer ?? this.marked ?? null;
    if (layer !== null) this.outline(context, layer);
    if (!this.cursor) return;
    const { bin } = this.cursor;
    const from = this.x(this.view.bins.starts[bin]);
    const width = Math.max(this.x(this.end(bin)) - from, 1);
    context.fillStyle = colorOf("ink");
    context.globalAlpha = 0.12;
    context.fillRect(from, this.area.top, width, this.area.height);
    context.globalAlpha = 1;
    context.fillRect(from + width / 2 - 0.5, this.area.top, 1, this.area.height);
  }

  outline(context, layer) {
    const { starts } = this.view.bins;
    const stride = this.layers.length + 1;
    context.fillStyle = colorOf("ink");
    for (let bin = 0; bin < starts.length; bin += 1) {
      const [low, high] = [this.ends[bin * stride + layer], this.ends[bin * stride + layer + 1]];
      if (high <= low) continue;
      const [from, until] = [this.x(starts[bin]), this.x(this.end(bin))];
      const [bottom, top] = [this.y(low), this.y(high)];
      context.globalAlpha = 0.25;
      context.fillRect(from, top, until - from, bottom - top);
      context.globalAlpha = 1;
      context.fillRect(from, top, until - from, 1.2);
      context.fillRect(from, bottom - 1.2, until - from, 1.2);
    }
  }

  /** What there is to say of the cursor, line by line. */
  told() {
    const { bin, layer } = this.cursor;
    const { bins, phases } = this.view;
    const op = bins.ops[bin];
    const start = (bins.starts[bin] / WHOLE) * this.view.makespan;
    const phase = phases.find(([from, until]) => from <= bins.starts[bin] && bins.starts[bin] < until);
    const lines = [];
    const where = [`at ${timeText(start)}`, phase ? phase[2] : "", op === null ? "" : opStage(op)].filter(Boolean).join(" · ");
    if (op === null) lines.push({ className: "op", text: "before the first operation" });
    else lines.push({ className: "op", text: opName(op) + (bins.is_again[bin] ? " (computed again)" : "") });
    if (bins.count[bin] > 1) {
      const again = bins.again[bin] > 0 ? `, ${bins.again[bin]}% of the time again` : "";
      lines.push({ className: "faint", text: `most is held here of ${bins.count[bin]} operations${again}` });
    }
    lines.push({ className: "faint", text: where });
    const limit = this.budget && this.budget <= this.scale.bytes ? ` of ${bytesText(this.budget)}` : "";
    lines.push({ className: "", text: `${bytesText(bins.held[bin])}${limit} held` });
    if (layer !== null) this.tellBand(lines, bin, layer);
    return lines;
  }

  tellBand(lines, bin, layer) {
    const { row, name, color } = this.layers[layer];
    const bytes = row === null ? this.bytesOf(bin, layer) : data.rows[row].bytes;
    lines.push({ className: "value", text: `${name}: ${bytesText(bytes)}`, color });
    if (row === null) return;
    const { op } = data.rows[row];
    const stage = opStage(op);
    lines.push({ className: "faint", text: `made by ${opName(op)}${stage ? ` · ${stage}` : ""}` });
    const { idle } = this.view.decisions[row];
    lines.push({ className: "", text: `${decisionOf(this.view, row).text}${idle > 0 ? `; not needed for ${timeText(idle)}` : ""}` });
  }
}

function showTip(lines, x, y) {
  const tip = byId("tip");
  tip.hidden = !lines;
  if (!lines) return;
  tip.replaceChildren(...lines.map(({ className, text, color }) => {
    const line = element("p", className, text);
    if (color) {
      const swatch = element("span", "swatch");
      swatch.style.background = color;
      line.prepend(swatch);
    }
    return line;
  }));
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 14 + width > innerWidth ? Math.max(4, x - width - 14) : x + 14;
  const top = y + 14 + height > innerHeight ? Math.max(4, y - height - 14) : y + 14;
  Object.assign(tip.style, { left: `${left}px`, top: `${top}px` });
}
