// Charts that share an axis, a window and a crosshair, each with curves of several runs.
import {getBlob, getSeries} from './api.js';
import {Chart} from './chart.js';
import {el, save} from './dom.js';
import {markMenu, marksOf} from './marks.js';
import {change, state} from './state.js';

const kPause = 200;  // ms between what is fetched for changes of runs
const kAxes = {step: 'steps', tokens: 'tokens', flops: 'FLOPs', time: 'time since start', training: 'training time'};
export const axisNames = () => Object.keys(kAxes);

export class Charts {
  // `panels`: {title, unit, meaning, actions, stack, curves: [{run, rank, tag, label, color}]} each. `stack`: curves are
  // parts of a whole and lie on one another.
  constructor(panels) {
    this.element = el('div', {class: 'grid'});
    this.panels = panels.map((panel) => this.makePanel(panel));
    this.element.append(...this.panels.map((panel) => panel.chart.element));
    // Those that are seen are asked for; others when they are.
    this.watch = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const panel = this.panels.find((one) => one.chart.element === entry.target);
        panel.seen = entry.isIntersecting;
        if (panel.seen && panel.stale && panel.asking === null) this.refresh(panel);
      }
    }, {rootMargin: '200px'});
    for (const panel of this.panels) this.watch.observe(panel.chart.element);
    this.resized = new ResizeObserver(() => {
      for (const panel of this.panels) panel.chart.resize();
    });
    this.resized.observe(this.element);
    this.waiting = 0;
    this.fetched = 0;  // when changes were, last
    this.cursorX = null;
    this.whole = null;  // [from, to] of all that was recorded
  }

  makePanel({title, unit, meaning, actions, curves, stack = false}) {
    const button = (text, what, onclick) => el('button', {type: 'button', text, title: what, 'aria-label': what, onclick});
    const saveImage = () => {
      const image = chart.image();
      if (image !== null) save(image, `${title}.png`);
    };
    const saveValues = async () => {
      const all = (of) => [...new Set(curves.map(of))];
      try {
        const address = URL.createObjectURL(await getBlob('csv', {
          run: all(({run}) => run), tag: all(({tag}) => tag), rank: curves[0]?.rank}));
        save(address, `${title}.csv`);
        setTimeout(() => URL.revokeObjectURL(address), 60000);
      } catch (error) {
        chart.say(error.message);
      }
    };
    const chart = new Chart({title, unit, meaning, stack, group: this, actions: [
      button('CSV', `save all values of ${title} as CSV`, saveValues),
      button('PNG', `save ${title} as an image`, saveImage), ...(actions ?? [])]});
    return {chart, curves, stale: true, seen: false, asking: null, data: null};
  }

  // What has changed of these runs, [[run, rank]...], is fetched again.
  runsChanged(runs) {
    const names = new Set(runs.map(([run]) => run));
    for (const panel of this.panels) {
      if (panel.curves.some(({run}) => names.has(run))) panel.stale = true;
    }
    if (this.waiting !== 0) return;
    this.waiting = setTimeout(() => {
      this.waiting = 0;
      this.fetched = performance.now();
      this.refreshStale();
    }, Math.max(0, this.fetched + kPause - performance.now()));
  }

  refreshStale() {
    if (document.hidden) return;
    for (const panel of this.panels) {
      if (panel.stale && panel.seen && panel.asking === null) this.refresh(panel);
    }
  }

  // What is on its way is of another window.
  refreshAll() {
    for (const panel of this.panels) {
      panel.asking?.abort();
      panel.asking = null;
      panel.stale = true;
    }
    this.refreshStale();
  }

  async refresh(panel) {
    panel.stale = false;
    const asking = new AbortController();
    panel.asking = asking;
    const {signal} = asking;
    const wanted = {x: state.x, from: state.from, to: state.to, log: state.logx, width: panel.chart.width()};
    try {
      const data = await Promise.all(panel.curves.map(
          async ({run, rank, tag}) => getSeries({run, rank, tag, ...wanted}, signal).catch((error) => {
            if (error.name === 'AbortError') throw error;
            return {error, x: []};  // the others are shown all the same
          })));
      panel.data = data;
      const failed = data.find((one) => one.error);
      const shown = panel.curves.map((curve, i) => ({...curve, data: data[i]})).filter(({data: one}) => !one.error);
      panel.shown = shown;
      this.drawAll(panel);
      if (failed) panel.chart.say(failed.error.message);
    } catch (error) {
      if (error.name !== 'AbortError') panel.chart.say(error.message);
    }
    if (panel.asking !== asking) return;
    panel.asking = null;
    if (panel.stale) this.refreshStale();  // what has come meanwhile
  }

  // All charts have one window, which may have grown by what `panel` has got.
  drawAll(panel) {
    const before = JSON.stringify(this.window());
    let [from, to] = [Infinity, -Infinity];
    for (const {shown} of this.panels) {
      for (const {data} of shown ?? []) {
        if (data.size === 0) continue;
        from = Math.min(from, state.logx && data.first <= 0 ? (data.x.find((x) => x > 0) ?? data.end) : data.first);
        to = Math.max(to, data.end);
      }
    }
    this.whole = from <= to ? [from, to] : null;
    const all = before !== JSON.stringify(this.window());
    for (const one of all ? this.panels : [panel]) this.draw(one);
  }

  window() {
    if (this.whole === null) return null;
    return [state.from === '' ? this.whole[0] : Number(state.from), state.to === '' ? this.whole[1] : Number(state.to)];
  }

  draw(panel) {
    if (!panel.shown) return;
    panel.chart.show(panel.shown, this.window() ?? [0, 1], {
      smooth: Number(state.smooth), logX: state.logx !== '', logY: state.logy !== '', clip: state.clip !== '',
      time: state.x === 'time' || state.x === 'training', axis: kAxes[state.x], marks: marksOf(state.x),
    });
  }

  redraw() {
    for (const panel of this.panels) this.draw(panel);
  }

  onCursor(from, x) {
    this.cursorX = x;
    for (const {chart} of this.panels) {
      if (chart !== from) chart.showCursor(x);
    }
  }

  onZoom(from, to) { change({from: String(from), to: String(to)}); }

  onReset() { change({from: '', to: ''}); }

  destroy() {
    clearTimeout(this.waiting);
    this.watch.disconnect();
    this.resized.disconnect();
    for (const panel of this.panels) {
      panel.asking?.abort();
      panel.chart.destroy();
    }
  }
}

// What is set for all charts.
export function chartTools() {
  const axis = el('select', {id: 'axis', onchange: (event) => change({x: event.target.value, from: '', to: ''})},
                  ...Object.entries(kAxes).map(([value, text]) => el('option', {value, text})));
  axis.value = state.x;
  const smooth = el('input', {id: 'smooth', type: 'range', min: '0', max: '0.98', step: '0.02', value: state.smooth,
                              oninput: (event) => change({smooth: event.target.value})});
  const flag = (key, label) => el('label', {}, el('input', {
    type: 'checkbox', id: key, checked: state[key] !== '',
    onchange: (event) => change({[key]: event.target.checked ? '1' : ''})}), ` ${label}`);
  return el('div', {class: 'row tools'}, el('label', {}, 'against ', axis), el('label', {}, 'smooth ', smooth),
            flag('logy', 'log y'), flag('logx', 'log x'), flag('clip', 'without outliers'),
            el('button', {type: 'button', id: 'reset', text: 'Whole range', onclick: () => change({from: '', to: ''})}),
            markMenu());
}
