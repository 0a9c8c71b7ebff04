// One chart: uPlot has its axes, grid, cursor and selection; the curves are drawn here, each with its own x.
import {duration, el, short} from './dom.js';

const kHeight = 230;
const kMostValues = 12;  // of runs beside the cursor, and in an image

// Exponential moving average of the buckets' last values, without the bias of its beginning.
function smoothed(values, keep) {
  const result = new Float64Array(values.length);
  let sum = 0;
  let weight = 0;
  for (let i = 0; i < values.length; ++i) {
    if (Number.isFinite(values[i])) {
      sum = keep * sum + (1 - keep) * values[i];
      weight = keep * weight + (1 - keep);
    }
    result[i] = Number.isFinite(values[i]) ? sum / weight : NaN;
  }
  return result;
}

// Each curve on top of those before it, at the places that the first has: what is logged together.
function stacked(curves) {
  const sums = new Map();
  return curves.map((curve) => {
    const {x, last} = curve.data;
    const base = Float64Array.from(x, (at) => sums.get(at) ?? 0);
    const top = base.map((from, i) => from + (Number.isFinite(last[i]) ? Math.max(0, last[i]) : 0));
    x.forEach((at, i) => sums.set(at, top[i]));
    return {...curve, base, top};
  });
}

// The index whose x is nearest.
function nearest(xs, x) {
  let low = 0;
  let high = xs.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1;
    else high = middle;
  }
  if (low === xs.length) return low - 1;
  return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
}

const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Chart {
  // `group` is told of onCursor(chart, x or null), onZoom(from, to) and onReset(); `actions` are buttons beside the
  // title.
  constructor({title, unit, meaning, group, stack = false, actions = []}) {
    this.stack = stack;
    this.group = group;
    this.title = title;
    this.unit = unit;
    this.curves = [];
    this.options = {smooth: 0, logX: false, logY: false, clip: false, time: false, axis: '', marks: []};
    this.window = null;
    this.cursorX = null;
    this.place = el('div', {class: 'plot', tabindex: '0', role: 'img', 'aria-label': title});
    this.place.addEventListener('keydown', (event) => this.onKey(event));
    this.list = el('ul', {class: 'values', 'aria-label': `values of ${title}`});
    this.note = el('p', {class: 'hint', hidden: true});
    this.element = el('figure', {class: 'chart'},
                      el('figcaption', {}, el('h3', {text: title, title: meaning ?? ''}),
                         el('small', {text: unit ?? ''}), ...actions),
                      this.place, this.note, this.list);
    this.plot = null;
    this.kind = '';
  }

  width() { return Math.max(200, Math.floor(this.place.clientWidth)); }

  // `curves`: {label, color, data} each, data as api.js has it. `window`: [from, to] on the x axis, null of none.
  show(curves, window, options) {
    this.curves = curves.map((curve) => ({...curve, line: options.smooth > 0 ? smoothed(curve.data.last, options.smooth)
                                                                            : curve.data.last}));
    if (this.stack) this.curves = stacked(this.curves);
    this.options = options;
    this.window = window;
    const empty = !curves.some((curve) => curve.data.x.length > 0);
    this.note.hidden = !empty;
    this.place.hidden = empty;
    if (empty) this.note.textContent = 'Nothing of this is recorded.';
    else this.draw();
    this.tell();
  }

  say(message) {
    this.note.hidden = false;
    this.note.textContent = message;
  }

  draw() {
    const kind = `${this.options.logX} ${this.options.logY} ${this.options.time} ${document.documentElement.dataset.theme}`;
    if (this.plot === null || kind !== this.kind) {
      this.plot?.destroy();
      this.kind = kind;
      this.plot = this.makePlot();
    }
    const [low, high] = this.range();
    const [from, to] = this.window;
    this.plot.batch(() => {
      this.plot.setScale('x', {min: from, max: to > from ? to : from + 1});
      this.plot.setScale('y', {min: low, max: high});
    });
    this.plot.redraw(false);
    if (this.plot.width !== this.width()) this.resize();
  }

  resize() {
    if (this.plot !== null && this.place.clientWidth > 0) this.plot.setSize({width: this.width(), height: kHeight});
  }

  makePlot() {
    const axis = {stroke: style('--faint'), grid: {stroke: style('--line'), width: 1},
                  ticks: {stroke: style('--line'), width: 1}, font: '12px system-ui, sans-serif'};
    const label = this.options.time ? duration : short;
    const values = (format) => (plot, splits) => splits.map((value) => (value === null ? '' : format(value)));
    return new uPlot({
      width: this.width(),
      height: kHeight,
      legend: {show: false},
      scales: {
        x: {time: false, auto: false, distr: this.options.logX ? 3 : 1},
        y: {auto: false, distr: this.options.logY ? 3 : 1},
      },
      axes: [{...axis, values: values(label), space: 60, size: 32}, {...axis, values: values(short), size: 58}],
      series: [{}, {scale: 'y', show: false}],
      cursor: {drag: {x: true, y: false, setScale: false}, points: {show: false}, y: false,
               bind: {dblclick: () => () => this.group.onReset()}},
      hooks: {
        drawAxes: [(plot) => this.drawCurves(plot)],
        setCursor: [(plot) => {
          if (plot.cursor.event === undefined || plot.cursor.event === null) return;
          this.moveCursor(plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, 'x') : null);
        }],
        setSelect: [(plot) => {
          const {left, width} = plot.select;
          if (width < 4) return;
          plot.setSelect({left: 0, width: 0, top: 0, height: 0}, false);
          this.group.onZoom(plot.posToVal(left, 'x'), plot.posToVal(left + width, 'x'));
        }],
      },
    }, [[0, 1], [null, null]], this.place);
  }

  // Of y, over what is in the window.
  range() {
    if (this.stack) {
      let most = 0;
      for (const {data, top} of this.curves) {
        top.forEach((value, i) => {
          if (data.x[i] >= this.window[0] && data.x[i] <= this.window[1]) most = Math.max(most, value);
        });
      }
      return this.options.logY ? [most / 1000 || 0.1, 1.1 * most || 1] : [0, 1.06 * most || 1];
    }
    const lows = [];
    const highs = [];
    for (const {data} of this.curves) {
      for (let i = 0; i < data.x.length; ++i) {
        if (data.x[i] < this.window[0] || data.x[i] > this.window[1] || Number.isNaN(data.min[i])) continue;
        lows.push(data.min[i]);
        highs.push(data.max[i]);
      }
    }
    const usable = this.options.logY ? (value) => value > 0 : () => true;
    let [low, high] = [lows.filter(usable), highs.filter(usable)];
    if (high.length === 0) return [0.1, 1];
    const least = (list) => list.reduce((a, b) => Math.min(a, b));
    const most = (list) => list.reduce((a, b) => Math.max(a, b));
    if (this.options.clip && high.length > 20) {
      // Without the hundredth that is furthest out on each side.
      low = low.sort((a, b) => a - b).slice(Math.floor(low.length / 100));
      high = high.sort((a, b) => a - b).slice(0, Math.ceil(high.length * 0.99));
    }
    if (low.length === 0) low = high;
    const [from, to] = [least(low), most(high)];
    if (this.options.logY) return [from / 1.1, to * 1.1];
    const room = to > from ? 0.06 * (to - from) : 0.1 * Math.abs(to) || 1;
    return [from - room, to + room];
  }

  drawCurves(plot) {
    const {ctx, bbox} = plot;
    const ratio = devicePixelRatio;
    const px = (x) => plot.valToPos(x, 'x', true);
    const py = (y) => plot.valToPos(y, 'y', true);
    const floor = plot.scales.y.min;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.lineJoin = 'round';
    if (this.stack) this.drawParts(ctx, px, py, floor);
    for (const {color, data, line} of this.stack ? [] : this.curves) {
      ctx.strokeStyle = color;
      // All that was recorded: each bucket from its least to its greatest value.
      ctx.globalAlpha = 0.4;
      ctx.lineWidth = ratio;
      ctx.beginPath();
      for (let i = 0; i < data.x.length; ++i) {
        if (data.min[i] === data.max[i] || !this.hasX(data.x[i]) || !this.hasY(data.max[i])) continue;
        const x = px(data.x[i]);
        const top = py(data.max[i]);
        const bottom = py(this.hasY(data.min[i]) ? data.min[i] : floor);
        ctx.moveTo(x, top);
        ctx.lineTo(x, Math.max(bottom, top + ratio));
      }
      ctx.stroke();
      if (line !== data.last) this.drawLine(ctx, data.x, data.last, px, py);
      ctx.globalAlpha = 1;
      ctx.lineWidth = 1.6 * ratio;
      this.drawLine(ctx, data.x, line, px, py);
    }
    // What was not finite, at the bottom.
    ctx.strokeStyle = style('--bad');
    ctx.lineWidth = 2 * ratio;
    ctx.beginPath();
    for (const {data} of this.curves) {
      for (let i = 0; i < data.x.length; ++i) {
        if (data.bad[i] === 0 || !this.hasX(data.x[i])) continue;
        const x = px(data.x[i]);
        const y = bbox.top + bbox.height - 6 * ratio;
        const r = 3.5 * ratio;
        ctx.moveTo(x - r, y - r);
        ctx.lineTo(x + r, y + r);
        ctx.moveTo(x + r, y - r);
        ctx.lineTo(x - r, y + r);
      }
    }
    ctx.stroke();
    this.drawMarks(ctx, bbox, px);
    ctx.restore();
  }

  drawParts(ctx, px, py, floor) {
    for (const {color, data, base, top} of this.curves) {
      const places = [...data.x.keys()].filter((i) => this.hasX(data.x[i]));
      const at = (values, i) => py(this.options.logY ? Math.max(values[i], floor) : values[i]);
      ctx.fillStyle = color;
      ctx.beginPath();
      for (const i of places) ctx.lineTo(px(data.x[i]), at(top, i));
      for (const i of places.reverse()) ctx.lineTo(px(data.x[i]), at(base, i));
      ctx.fill();
    }
  }

  drawMarks(ctx, bbox, px) {
    const ratio = devicePixelRatio;
    ctx.strokeStyle = style('--faint');
    ctx.fillStyle = style('--text');
    ctx.lineWidth = ratio;
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textBaseline = 'top';
    ctx.setLineDash([4 * ratio, 3 * ratio]);
    for (const {x, text} of this.options.marks) {
      if (!this.hasX(x)) continue;
      const at = px(x);
      ctx.beginPath();
      ctx.moveTo(at, bbox.top);
      ctx.lineTo(at, bbox.top + bbox.height);
      ctx.stroke();
      ctx.textAlign = at > bbox.left + bbox.width / 2 ? 'right' : 'left';
      ctx.fillText(text, at + (ctx.textAlign === 'left' ? 4 : -4) * ratio, bbox.top + 2 * ratio);
    }
  }

  hasX(x) { return !this.options.logX || x > 0; }
  hasY(y) { return Number.isFinite(y) && (!this.options.logY || y > 0); }

  // With gaps where there is nothing to draw; a value between two of them is a dot.
  drawLine(ctx, xs, ys, px, py) {
    ctx.beginPath();
    let drawing = false;
    for (let i = 0; i < xs.length; ++i) {
      if (!this.hasX(xs[i])) continue;
      if (!this.hasY(ys[i])) {
        drawing = false;
        continue;
      }
      const [x, y] = [px(xs[i]), py(ys[i])];
      const alone = !drawing && (i + 1 === xs.length || !this.hasY(ys[i + 1]));
      if (drawing) ctx.lineTo(x, y);
      else ctx.moveTo(x, y);
      if (alone) ctx.arc(x, y, ctx.lineWidth, 0, 2 * Math.PI);
      drawing = true;
    }
    ctx.stroke();
  }

  // The crosshair: here, and by the group in all charts.
  moveCursor(x) {
    if (x === this.cursorX) return;
    this.showCursor(x, /*here=*/true);
    this.group.onCursor(this, x);
  }

  showCursor(x, here = false) {
    this.cursorX = x;
    if (this.plot !== null && !here) {
      this.plot.cursor.event = null;
      const left = x === null ? -10 : this.plot.valToPos(x, 'x');
      this.plot.setCursor({left, top: x === null ? -10 : 1}, false);
    }
    this.tell();
  }

  // Values below the chart: at the crosshair, else the last.
  tell() {
    const rows = [];
    for (const {label, color, data} of this.curves) {
      if (data.x.length === 0) continue;
      const i = this.cursorX === null ? data.x.length - 1 : nearest(data.x, this.cursorX);
      const band = data.min[i] !== data.max[i] && !Number.isNaN(data.min[i])
          ? ` (${short(data.min[i])} to ${short(data.max[i])})` : '';
      const bad = data.bad.reduce((sum, count) => sum + count, 0);
      const dot = el('span', {class: 'swatch', 'aria-hidden': 'true'});
      dot.style.background = color;
      rows.push(el('li', {}, dot, `${label}: ${short(data.last[i])}${band}`,
                   bad > 0 ? el('span', {class: 'bad', text: ` ${bad} not finite`}) : ''));
    }
    const more = rows.length - kMostValues;
    if (more > 0) rows.splice(kMostValues, more, el('li', {text: `and ${more} more`}));
    const format = this.options.time ? duration : short;
    if (this.cursorX !== null && rows.length > 0) rows.unshift(el('li', {class: 'hint', text: `at ${format(this.cursorX)}`}));
    this.list.replaceChildren(...rows);
    const said = [...rows.map((row) => row.textContent),
                  ...this.options.marks.map(({x, text}) => `marked at ${format(x)}: ${text}`)];
    this.place.setAttribute('aria-label', `${this.title}: ${said.join('; ')}`);
  }

  onKey(event) {
    if (this.window === null || event.ctrlKey || event.metaKey || event.altKey) return;
    const [from, to] = this.window;
    const x = this.cursorX ?? (from + to) / 2;
    const stride = (to - from) / (event.shiftKey ? 10 : 100);
    const zoom = (by) => this.group.onZoom(x - (x - from) * by, x + (to - x) * by);
    if (event.key === 'ArrowLeft') this.setCursor(Math.max(from, x - stride));
    else if (event.key === 'ArrowRight') this.setCursor(Math.min(to, x + stride));
    else if (event.key === '+' || event.key === '=') zoom(0.5);
    else if (event.key === '-') zoom(2);
    else if (event.key === 'Escape') this.setCursor(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  setCursor(x) {
    this.showCursor(x);
    this.group.onCursor(this, x);
  }

  // The chart with its title and what the colors are: a PNG's address, nothing where there is nothing to see.
  image() {
    if (this.plot === null || this.place.hidden) return null;
    const curves = this.plot.ctx.canvas;
    const ratio = devicePixelRatio;
    const [edge, line] = [12 * ratio, 18 * ratio];
    const named = this.curves.slice(0, kMostValues);
    const canvas = el('canvas', {width: curves.width + 2 * edge,
                                 height: curves.height + (named.length + 1) * line + 3 * edge});
    const ctx = canvas.getContext('2d');
    ctx.fillStyle = style('--card');
    ctx.fillRect(0, 0, canvas.width, canvas.height);
    ctx.textBaseline = 'middle';
    const write = (text, x, y, weight = '') => {
      ctx.font = `${weight} ${13 * ratio}px system-ui, sans-serif`;
      ctx.fillStyle = style('--text');
      ctx.fillText(text, x, y, canvas.width - edge - x);
    };
    const unit = this.unit ? `, ${this.unit}` : '';
    write(`${this.title}${unit}, against ${this.options.axis}`, edge, edge + line / 2, 'bold');
    ctx.drawImage(curves, edge, 1.5 * edge + line);
    named.forEach(({label, color, data}, i) => {
      const y = 2 * edge + line + curves.height + (i + 0.5) * line;
      ctx.fillStyle = color;
      ctx.fillRect(edge, y - line / 4, line / 2, line / 2);
      write(data.x.length > 0 ? `${label}: ${short(data.last.at(-1))}` : label, edge + line, y);
    });
    return canvas.toDataURL('image/png');
  }

  destroy() { this.plot?.destroy(); }
}
