// The page: the list of runs, and beside it what the chosen ones have recorded, in views.
import {refreshAlerts, showAlerts} from './alerts.js';
import {getJson} from './api.js';
import {axisNames, Charts, chartTools} from './charts.js';
import {showCheckpoints} from './checkpoints.js';
import {showCompare} from './compare.js';
import {byId, el, showError, swatch} from './dom.js';
import {listen} from './events.js';
import {beginMark, fillMarks} from './marks.js';
import {showMemory} from './memory.js';
import {showMessages} from './messages.js';
import {kGpuTag, kPhaseTags, kTimeTags} from './metrics.js';
import {Router} from './router.js';
import {nameOf, onRows, refreshRuns, startRuns} from './runs.js';
import {accessToken, change, colorOf, colorOfRun, onChange, state} from './state.js';
import {startTheme} from './theme.js';

const kViews = {charts: 'Curves', router: 'Router', time: 'Time', gpus: 'GPUs', memory: 'Memory', checkpoints: 'Checkpoints',
                alerts: 'Alerts', compare: 'Compare', messages: 'Messages'};
const kAlertsEvery = 5000;  // ms: a run that stands still tells of nothing else
const kKeys = {
  '/': 'search runs', '1 to 9': 'curves, router, time, GPUs, memory, checkpoints, alerts, compare, messages', 'l': 'logarithmic y axis',
  's': 'more smoothing, from the beginning again behind the most', 'x': 'next x axis', '0': 'whole range',
  'm': 'mark what is at the crosshair',
  't': 'dark or light', '?': 'these keys',
  'on a chart': 'left and right move the crosshair (shift: faster), + and - zoom, Escape leaves it',
  'with the mouse': 'drag over a part of a chart to zoom, double click for the whole range',
};

let current = null;  // what the view is made of: {charts, router, run}, any of them
let drawn = 0;       // views that were begun: what comes for an earlier one is dropped

// ---- views -----------------------------------------------------------------------------------------------------

const details = new Map();  // run -> what api/run said of the rank that is looked at
async function detailOf(run) {
  if (!details.has(run)) details.set(run, await getJson('run', {run, rank: state.rank}));
  return details.get(run);
}

// A choice among the ranks of runs, where there are several.
function rankChoice(infos) {
  const ranks = [...new Set(infos.flatMap((info) => info.ranks))].sort((a, b) => a - b);
  if (ranks.length < 2) return '';
  const select = el('select', {id: 'rank', onchange: (event) => change({rank: event.target.value})},
                    ...ranks.map((rank) => el('option', {value: rank, text: rank})));
  select.value = state.rank;
  return el('label', {}, 'rank ', select);
}

// A choice among the chosen runs; of one it is that.
let looked = null;
function oneRun(place) {
  if (!state.run.includes(looked)) looked = state.run.at(-1) ?? null;
  if (state.run.length > 1) {
    const select = el('select', {onchange: (event) => {
      looked = event.target.value;
      showView();
    }}, ...state.run.map((run) => el('option', {value: run, text: `${nameOf(run)} (${run})`})));
    select.value = looked;
    place.append(el('div', {class: 'row tools'}, el('label', {}, 'run ', select)));
  }
  return looked;
}

function tagChoice(all) {
  const list = el('div', {class: 'tags'});
  const find = el('input', {type: 'search', 'aria-label': 'find a curve', placeholder: 'router cv', oninput: () => fill()});
  const rows = el('div');
  const fill = () => {
    const words = find.value.toLowerCase().split(/\s+/);
    const found = all.filter(({tag, meaning}) => words.every((word) => `${tag} ${meaning}`.toLowerCase().includes(word)));
    rows.replaceChildren(...found.slice(0, 200).map(({tag, meaning}) => {
      const box = el('input', {type: 'checkbox', checked: state.tag.includes(tag), onchange: () => change({
        tag: box.checked ? [...state.tag, tag] : state.tag.filter((one) => one !== tag)})});
      return el('div', {}, el('label', {}, box, ` ${tag} `, el('small', {text: meaning})));
    }));
    if (found.length > 200) rows.append(el('p', {class: 'hint', text: `and ${found.length - 200} more: search for them`}));
  };
  fill();
  list.append(find, rows);
  return el('details', {class: 'menu', id: 'tag-menu'}, el('summary', {text: `Choose curves (${all.length})`}), list);
}

async function showCurves(place, turn) {
  if (state.run.length === 0) {
    place.replaceChildren(el('p', {class: 'hint', text: 'Choose runs from the list to see their curves.'}));
    return;
  }
  const infos = await Promise.all(state.run.map(detailOf));
  if (turn !== drawn) return;
  const tags = new Map();
  for (const {tags: of} of infos) for (const info of of) if (!info.array) tags.set(info.tag, info);
  const all = [...tags.values()].sort((a, b) => (a.tag < b.tag ? -1 : 1));
  const rank = Number(state.rank);
  const having = state.run.filter((run, i) => infos[i].ranks.includes(rank) || rank === 0);
  const panels = state.tag.map((tag) => {
    const close = el('button', {type: 'button', title: `remove ${tag}`, 'aria-label': `remove ${tag}`, text: '\u2715',
                                onclick: () => change({tag: state.tag.filter((one) => one !== tag)})});
    return {
      title: tag, unit: tags.get(tag)?.unit, meaning: tags.get(tag)?.meaning, actions: [close],
      curves: having.map((run) => ({run, rank, tag, label: nameOf(run), color: colorOfRun(run)})),
    };
  });
  const open = byId('tag-menu')?.open ?? false;
  const tools = chartTools();
  const choice = tagChoice(all);
  choice.open = open;
  tools.append(rankChoice(infos), choice);
  const charts = new Charts(panels);
  place.replaceChildren(tools, charts.element);
  fillMarks();
  current = {charts};
}

// What a step's time goes to.
async function showTime(place, turn) {
  place.replaceChildren();
  const run = oneRun(place);
  if (run === null) {
    place.append(el('p', {class: 'hint', text: 'Choose a run from the list to see what its time goes to.'}));
    return;
  }
  const info = await detailOf(run);
  if (turn !== drawn) return;
  const tools = chartTools();
  tools.append(rankChoice([info]));
  place.append(tools);
  const rank = Number(state.rank);
  const panels = [];
  const phases = info.tags.filter(({tag}) => kPhaseTags.includes(tag));
  if (phases.length > 0) {
    panels.push({
      title: 'phases of a step', unit: 'ms', stack: true,
      meaning: phases.map(({tag, meaning}) => `${tag}: ${meaning}`).join('\n'),
      curves: phases.map(({tag}, i) => ({run, rank, tag, label: tag.slice(tag.indexOf('/') + 1).replaceAll('_', ' '), color: colorOf(i)})),
    });
  }
  for (const name of kTimeTags) {
    const known = info.tags.find(({tag}) => tag === name);
    if (known) panels.push({title: name, unit: known.unit, meaning: known.meaning,
                            curves: [{run, rank, tag: name, label: nameOf(run), color: colorOfRun(run)}]});
  }
  const charts = new Charts(panels);
  place.append(charts.element);
  fillMarks();
  current = {charts};
}

async function showGpus(place, turn) {
  place.replaceChildren();
  const run = oneRun(place);
  if (run === null) {
    place.append(el('p', {class: 'hint', text: 'Choose a run from the list to see its GPUs.'}));
    return;
  }
  const info = await detailOf(run);
  if (turn !== drawn) return;
  const tools = chartTools();
  tools.append(rankChoice([info]));
  place.append(tools);
  const metrics = new Map();
  for (const {tag, unit, meaning} of info.tags) {
    const [, gpu, metric] = kGpuTag.exec(tag) ?? [];
    if (metric === undefined) continue;
    if (!metrics.has(metric)) metrics.set(metric, {title: metric, unit, meaning, curves: []});
    metrics.get(metric).curves.push({run, rank: Number(state.rank), tag, label: `GPU ${Number(gpu)}`, color: colorOf(Number(gpu))});
  }
  if (metrics.size === 0) {
    place.append(el('p', {class: 'hint', text: 'This rank has recorded no GPUs: it ran on none, their ' +
        'driver said nothing, or another rank of its host records them.'}));
    return;
  }
  const charts = new Charts([...metrics.values()]);
  place.append(charts.element);
  fillMarks();
  current = {charts};
}

function showRouter(place) {
  place.replaceChildren();
  const run = oneRun(place);
  if (run === null) {
    place.append(el('p', {class: 'hint', text: 'Choose a run from the list to see its routers.'}));
    return;
  }
  const router = new Router(run);
  place.append(router.element);
  current = {router, run};
  router.refresh();
}

async function showLog(place) {
  place.replaceChildren();
  const run = oneRun(place);
  const box = el('div');
  place.append(box);
  current = {run, log: box};
  await showMessages(box, run);
}

async function showPlan(place) {
  place.replaceChildren();
  const run = oneRun(place);
  const box = el('div');
  place.append(box);
  await showMemory(box, run);
}

async function showSaved(place) {
  place.replaceChildren();
  const run = oneRun(place);
  const box = el('div');
  place.append(box);
  current = {run, saved: box};
  await showCheckpoints(box, run);
}

async function showView() {
  const turn = ++drawn;
  current?.charts?.destroy();
  current?.router?.destroy();
  current = null;
  for (const tab of byId('tabs').children) {
    const here = tab.dataset.view === state.view;
    tab.setAttribute('aria-selected', String(here));
    tab.tabIndex = here ? 0 : -1;
  }
  const place = byId('view');
  place.setAttribute('aria-labelledby', `tab-${state.view}`);
  try {
    if (state.view === 'router') showRouter(place);
    else if (state.view === 'time') await showTime(place, turn);
    else if (state.view === 'alerts') showAlerts(place);
    else if (state.view === 'gpus') await showGpus(place, turn);
    else if (state.view === 'memory') await showPlan(place);
    else if (state.view === 'checkpoints') await showSaved(place);
    else if (state.view === 'compare') await showCompare(place);
    else if (state.view === 'messages') await showLog(place);
    else await showCurves(place, turn);
  } catch (error) {
    if (turn === drawn) showError(place, error);
  }
}

// ---- what happens -------------------------------------------------------------------------------------------------

function onEvent(event) {
  const place = byId('connection');
  if ('connected' in event) {
    place.textContent = event.connected ? 'live'
        : event.refused ? 'the server was started again: open the link that it has printed'
        : 'no connection to the server; trying again';
    place.className = event.connected ? 'live' : 'lost';
    if (event.connected) {
      details.clear();
      refreshRuns();
      current?.charts?.refreshAll();
    }
    return;
  }
  if (event.list) {
    refreshRuns();
    if (current?.saved && !document.hidden) showCheckpoints(current.saved, current.run);
  }
  for (const [run] of event.runs) details.delete(run);
  current?.charts?.runsChanged(event.runs);
  if (document.hidden || !event.runs.some(([run]) => run === current?.run)) return;
  if (current.router && current.router.at === null) current.router.refresh();
  if (current.log) showMessages(current.log, current.run);
}

function redraw() {
  current?.charts?.redraw();
  if (current?.router?.frame) current.router.draw();
}

function startTabs() {
  const names = Object.keys(kViews);
  for (const [view, label] of Object.entries(kViews)) {
    byId('tabs').append(el('button', {type: 'button', role: 'tab', id: `tab-${view}`, 'data-view': view,
                                      'aria-controls': 'view', text: label, onclick: () => change({view})}));
  }
  byId('tabs').addEventListener('keydown', (event) => {
    const stride = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!stride) return;
    change({view: names[(names.indexOf(state.view) + stride + names.length) % names.length]});
    byId(`tab-${state.view}`).focus();
  });
}

function startKeys() {
  for (const [key, what] of Object.entries(kKeys)) {
    byId('help-keys').append(el('tr', {}, el('th', {scope: 'row'}, el('kbd', {text: key})), el('td', {class: 'name', text: what})));
  }
  byId('keys').addEventListener('click', () => byId('help').showModal());
  const smoothing = ['0', '0.6', '0.9', '0.96'];
  const next = (list, value) => list[(list.indexOf(value) + 1) % list.length];
  document.addEventListener('keydown', (event) => {
    const typing = event.target.closest('input:not([type="checkbox"]), select, dialog') !== null;
    if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
    const view = Object.keys(kViews)[Number(event.key) - 1];
    if (view !== undefined) change({view});
    else if (event.key === '/') byId('query').focus();
    else if (event.key === 'l') change({logy: state.logy ? '' : '1'});
    else if (event.key === 's') change({smooth: next(smoothing, state.smooth)});
    else if (event.key === 'x') change({x: next(axisNames(), state.x), from: '', to: ''});
    else if (event.key === '0') change({from: '', to: ''});
    else if (event.key === 'm') beginMark(current?.charts?.cursorX ?? null);
    else if (event.key === 't') byId('theme').click();
    else if (event.key === '?') byId('help').showModal();
    else return;
    event.preventDefault();
  });
}

async function lookAtAlerts() {
  if (!document.hidden && await refreshAlerts() && state.view === 'alerts') showAlerts(byId('view'));
}

onChange((changed) => {
  const has = (...keys) => keys.some((key) => changed.has(key));
  if (has('rank')) details.clear();
  if (has('run')) lookAtAlerts();
  if (has('view', 'run', 'tag', 'rank')) {
    showView();
    return;
  }
  if (has('of')) current?.router?.refresh();
  for (const [id, key] of [['axis', 'x'], ['smooth', 'smooth']]) {
    if (has(key) && byId(id)) byId(id).value = state[key];
  }
  for (const key of ['logx', 'logy', 'clip']) if (has(key) && byId(key)) byId(key).checked = state[key] !== '';
  if (has('x', 'from', 'to', 'logx')) current?.charts?.refreshAll();
  if (has('mark')) fillMarks();
  if (has('smooth', 'logy', 'clip', 'mark')) current?.charts?.redraw();
});

startTheme(redraw);
startTabs();
startKeys();
startRuns();
let begun = false;
onRows(() => {
  if (begun) return;
  begun = true;  // names of runs are known from here on
  showView();
});
document.addEventListener('visibilitychange', () => current?.charts?.refreshStale());
if (accessToken() === '') {
  byId('connection').textContent = 'open the link that n viz has printed: it has the token';
  byId('connection').className = 'lost';
} else {
  refreshRuns();
  lookAtAlerts();
  setInterval(lookAtAlerts, kAlertsEvery);
  listen(accessToken(), onEvent);
}
