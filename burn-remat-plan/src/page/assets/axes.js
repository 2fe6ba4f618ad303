// What stands around the bands: phases, stages, recomputation, the budget and the numbers.

/** Round numbers from 0 to `most`, about `count` of them. */
function ticks(most, count) {
  const rough = most / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= rough);
  const found = [];
  for (let at = 0; at <= most * 1.0001; at += step) found.push(Number(at.toPrecision(6)));
  return found;
}

/** Steps of bytes that are round in their unit. */
function byteTicks(most, count) {
  const unit = byteUnit(most);
  return { unit, ticks: ticks(most / unit.size, count) };
}

const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'Open Sans', sans-serif";

function drawGround(context, picture) {
  const { area, view } = picture;
  context.fillStyle = colorOf("ground");
  context.fillRect(area.left, area.top, area.width, area.height);
  context.font = FONT;
  context.textBaseline = "top";
  for (const [from, until, phase] of view.phases) {
    const [left, right] = [picture.x(from), picture.x(until)];
    context.fillStyle = colorOf(phase);
    context.fillRect(left, area.top, right - left, area.height);
  }
  const unit = byteUnit(picture.scale.bytes);
  context.strokeStyle = colorOf("line");
  context.lineWidth = 1;
  for (const tick of ticks(picture.scale.bytes / unit.size, 4)) {
    const y = Math.round(picture.y(tick * unit.size)) + 0.5;
    context.beginPath();
    context.moveTo(area.left, y);
    context.lineTo(area.left + area.width, y);
    context.stroke();
  }
}

function drawAxes(context, picture) {
  const { area } = picture;
  context.font = FONT;
  drawPhaseNames(context, picture);
  drawBytes(context, picture);
  drawAgain(context, picture);
  drawStages(context, picture);
  drawTime(context, picture);
  if (picture.budget) drawBudget(context, picture);
  context.strokeStyle = colorOf("line");
  context.strokeRect(area.left + 0.5, area.top + 0.5, area.width - 1, area.height - 1);
}

/** Where each phase begins, and its name where there is room. */
function drawPhaseNames(context, picture) {
  const { area } = picture;
  const widest = new Map();
  for (const span of picture.view.phases) {
    const known = widest.get(span[2]);
    if (!known || span[1] - span[0] > known[1] - known[0]) widest.set(span[2], span);
  }
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const [from, until, phase] of widest.values()) {
    const [left, right] = [picture.x(from), picture.x(until)];
    if (context.measureText(phase).width + 6 > right - left) continue;
    outlined(context, phase, (left + right) / 2, area.top + 4, colorOf("faint"));
  }
}

/** Text that is readable on any band. */
function outlined(context, text, x, y, color) {
  context.lineJoin = "round";
  context.lineWidth = 3;
  context.strokeStyle = colorOf("panel");
  context.globalAlpha = 0.8;
  context.strokeText(text, x, y);
  context.globalAlpha = 1;
  context.fillStyle = color;
  context.fillText(text, x, y);
  context.lineWidth = 1;
}

function drawBytes(context, picture) {
  const { area } = picture;
  const { unit, ticks } = byteTicks(picture.scale.bytes, 4);
  context.fillStyle = colorOf("faint");
  context.textAlign = "right";
  context.textBaseline = "middle";
  ticks.forEach((tick, at) => {
    const y = picture.y(tick * unit.size);
    const last = at === ticks.length - 1;
    context.fillText(last ? `${tick} ${unit.name}` : `${tick}`, area.left - 5, Math.max(y, area.top + 5));
  });
}

/** A strip below the picture, coloured where operations run again. */
function drawAgain(context, picture) {
  const { area, view } = picture;
  const { starts, again } = view.bins;
  const top = area.top + area.height + 3;
  context.fillStyle = colorOf("line");
  context.fillRect(area.left, top + 2, picture.x(WHOLE) - area.left, 1);
  context.fillStyle = colorOf("again");
  for (let bin = 0; bin < starts.length; bin += 1) {
    if (again[bin] === 0) continue;
    const from = picture.x(starts[bin]);
    context.globalAlpha = 0.35 + (0.65 * again[bin]) / 100;
    context.fillRect(from, top, Math.max(picture.x(picture.end(bin)) - from, 1), 5);
  }
  context.globalAlpha = 1;
}

function drawStages(context, picture) {
  const { area, view, lanes } = picture;
  const first = area.top + area.height + 11;
  context.textAlign = "left";
  context.textBaseline = "middle";
  // On a narrow page the innermost stages have no room.
  for (const { depth, start, end, name } of view.stages) {
    if (depth >= lanes) continue;
    const [left, right] = [picture.x(start), picture.x(end)];
    const top = first + 15 * depth;
    context.fillStyle = colorOf("line");
    context.fillRect(left, top, Math.max(right - left - 1, 1), 13);
    const text = fitted(context, data.texts[name], right - left - 7);
    if (!text) continue;
    context.fillStyle = colorOf("ink");
    context.fillText(text, left + 3, top + 7);
  }
}

/** As much of a text as there is room for: the number at its end before a beginning, or nothing where that would say nothing. */
function fitted(context, text, width) {
  const fits = (text) => context.measureText(text).width <= width;
  if (fits(text)) return text;
  const [number] = text.match(/#?\d+$/) ?? [""];
  if (number) return fits(number) ? number : "";
  for (let length = text.length - 1; length >= 4; length -= 1) {
    if (fits(`${text.slice(0, length)}…`)) return `${text.slice(0, length)}…`;
  }
  return "";
}

function drawTime(context, picture) {
  const { area, scale, lanes } = picture;
  const unit = timeUnit(scale.time);
  const y = area.top + area.height + 13 + 15 * lanes;
  context.fillStyle = colorOf("faint");
  context.textBaseline = "top";
  const marks = ticks(scale.time / unit.size, area.width < 500 ? 4 : 9);
  marks.forEach((tick, at) => {
    const x = area.left + ((tick * unit.size) / scale.time) * area.width;
    const text = data.is_time ? tick.toLocaleString("en") : shortText(tick);
    const last = at === marks.length - 1;
    const full = last ? `${text} ${unit.name || "cost"}` : text;
    const room = area.left + area.width - x;
    context.textAlign = at === 0 ? "left" : room < context.measureText(full).width / 2 ? "right" : "center";
    context.fillText(full, context.textAlign === "right" ? area.left + area.width : x, y);
  });
}

function drawBudget(context, picture) {
  const { area, budget } = picture;
  if (budget > picture.scale.bytes) return;
  const y = Math.round(picture.y(budget)) + 0.5;
  const color = colorOf("budget");
  context.strokeStyle = color;
  context.lineWidth = 1.5;
  context.setLineDash([6, 4]);
  context.beginPath();
  context.moveTo(area.left, y);
  context.lineTo(area.left + area.width, y);
  context.stroke();
  context.setLineDash([]);
  context.lineWidth = 1;
  context.textAlign = "right";
  const above = y - area.top > 18;
  context.textBaseline = above ? "bottom" : "top";
  outlined(context, `budget ${bytesText(budget)}`, area.left + area.width - 5, above ? y - 2 : y + 4, color);
}
