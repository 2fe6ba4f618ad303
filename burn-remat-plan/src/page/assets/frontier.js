// Time added against budget: the plans among which the slider chooses.

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

class Frontier {
  constructor(home, choose) {
    this.size = { width: 292, height: 176, left: 40, right: 10, top: 12, bottom: 34 };
    this.stops = data.stops.map(({ budget, view }) => ({ budget, added: 100 * overheadOf(data.views[view]) }));
    const budgets = this.stops.map((stop) => stop.budget);
    const [least, most] = [Math.min(...budgets), Math.max(...budgets)];
    const margin = Math.max((most - least) * 0.06, most * 0.01, 1);
    this.range = { least: Math.max(0, least - margin), most: most + margin / 2 };
    const given = data.given && data.views[data.given.view];
    // The smallest budget may cost many times what the others do, and would leave them no height: it is cut off.
    const costs = [...this.stops.map((stop) => stop.added), given ? 100 * overheadOf(given) : 0].sort((a, b) => b - a);
    this.isCut = costs[0] > 4 * Math.max(costs[1], 1);
    this.lowest = Math.min(0, ...costs);
    this.highest = Math.max(this.isCut ? 2 * costs[1] : 1.08 * costs[0], 1);
    this.draw(home, choose, given);
  }

  x(budget) {
    const { width, left, right } = this.size;
    return left + ((budget - this.range.least) / (this.range.most - this.range.least)) * (width - left - right);
  }

  y(percent) {
    const { height, top, bottom } = this.size;
    return top + (1 - (Math.min(percent, this.highest) - this.lowest) / (this.highest - this.lowest)) * (height - top - bottom);
  }

  draw(home, choose, given) {
    const { width, height, left, right, bottom } = this.size;
    const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img",
      "aria-label": "Time added against budget: the slider below goes along this line" });
    for (const tick of ticks(this.highest, 4)) {
      picture.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: this.y(tick), y2: this.y(tick) }),
        svg("text", { x: left - 6, y: this.y(tick) + 4, "text-anchor": "end" }, `${tick}%`));
    }
    const unit = byteUnit(this.range.most);
    const marks = ticks(this.range.most / unit.size, 8).filter((tick) => tick * unit.size >= this.range.least);
    const every = Math.ceil(marks.length / 5);
    marks.filter((_, at) => at % every === 0).forEach((tick) => {
      picture.append(svg("text", { x: this.x(tick * unit.size), y: height - bottom + 15, "text-anchor": "middle" }, `${tick}`));
    });
    picture.append(svg("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" },
      `budget (${unit.name}); upwards: time added`));
    // What keeps to a budget keeps to a larger one, until a cheaper plan is known.
    const path = this.stops.map(({ budget, added }, at) => {
      const to = `${this.x(budget)},${this.y(added)}`;
      return at === 0 ? `M${to}` : `H${this.x(budget)}V${this.y(added)}`;
    });
    picture.append(svg("path", { class: "known", d: path.join("") }));
    this.dots = this.stops.map(({ budget, added }, at) => {
      const dot = svg("circle", { cx: this.x(budget), cy: this.y(added), r: 4.5 });
      dot.append(svg("title", {}, `${bytesText(budget)}: ${percentText(added / 100)}`));
      dot.addEventListener("click", () => choose(at));
      picture.append(dot);
      return dot;
    });
    if (this.isCut) {
      const { added } = this.stops[0];
      const next = this.stops[Math.min(1, this.stops.length - 1)];
      picture.append(svg("text", { x: this.x(next.budget) + 7, y: this.y(added) + 4 }, `${percentText(added / 100)}, cut off`));
    }
    if (given) {
      const [x, y] = [this.x(Math.min(Math.max(data.given.budget ?? 0, given.peak), this.range.most)), this.y(100 * overheadOf(given))];
      const isRight = x > width * 0.62;
      picture.append(svg("circle", { class: "mark", cx: x, cy: y, r: 8.5 }),
        svg("text", { class: "mark-text", x: isRight ? x - 13 : x + 13, y: y - 6, "text-anchor": isRight ? "end" : "start" }, "given plan"));
    }
    home.append(picture);
  }

  mark(stop) {
    this.dots.forEach((dot, at) => dot.classList.toggle("here", at === stop));
  }
}
