// The list of runs: searched and sorted by the server, a page of it here.
import {getJson} from './api.js';
import {byId, duration, el, short, showError, swatch} from './dom.js';
import {change, colorOfRun, onChange, state} from './state.js';

const kPage = 200;
const kMost = 1000;
const kColumns = {
  experiment: 'experiment', status: 'status', step: 'step', tokens: 'tokens', loss: 'loss', valid: 'valid',
  bpb: 'bits/byte', rate: 'tokens/s', checkpoint: 'saved', started: 'started', updated: 'updated', host: 'host',
  id: 'id', reason: 'reason', note: 'note',
};
const kNumbers = new Set(['step', 'tokens', 'loss', 'valid', 'bpb', 'rate', 'checkpoint']);

let rows = [];
let limit = kPage;
let asking = null;
const known = new Map();  // run id -> row, of all that were listed or chosen
const listeners = [];

export const nameOf = (run) => known.get(run)?.name ?? run;
export const rowOf = (run) => known.get(run);
export function onRows(listener) { listeners.push(listener); }

// Words that are conditions, and others.
function parse(query) {
  const words = query.trim().split(/\s+/).filter((word) => word);
  const isCondition = (word) => /^[a-z]+(!=|<=|>=|=|<|>|~)./.test(word);
  return {filter: words.filter(isCondition), q: words.filter((word) => !isCondition(word)).join(' ')};
}

export async function refreshRuns() {
  asking?.abort();
  asking = new AbortController();
  const {signal} = asking;
  try {
    const reply = await getJson('runs', {...parse(state.q), sort: state.sort, limit}, signal);
    const before = JSON.stringify(rows);
    rows = reply.runs;
    for (const row of rows) known.set(row.id, row);
    for (const run of state.run.filter((id) => !rows.some((row) => row.id === id))) {
      const one = await getJson('runs', {filter: `id=${run}`}, signal);
      for (const row of one.runs) known.set(row.id, row);
    }
    byId('run-count').className = '';
    byId('run-count').textContent = reply.total === reply.all ? `${reply.all} runs` : `${reply.total} of ${reply.all} runs`;
    byId('more').hidden = rows.length >= reply.total || limit >= kMost;
    if (before !== JSON.stringify(rows)) draw();  // a row that is replaced would lose a click on it
    for (const listener of listeners) listener();
  } catch (error) {
    if (error.name !== 'AbortError') showError(byId('run-count'), error);
  }
}

function age(text) {
  const seconds = (Date.now() - Date.parse(text)) / 1000;
  return Number.isFinite(seconds) ? `${duration(Math.max(0, Math.round(seconds)))} ago` : text;
}

function cell(row, column) {
  const value = row[column];
  if (column === 'status') {
    const kind = value === 'running' ? 'status-running' : /failed|dead/.test(value) ? 'status-bad' : '';
    return el('td', {class: kind, title: row.reason ?? '', text: value});
  }
  if (kNumbers.has(column)) return el('td', {class: 'number', text: value === null ? '' : short(Number(value.toPrecision(4)))});
  if (column === 'started' || column === 'updated') return el('td', {title: value, text: value ? age(value) : ''});
  return el('td', {class: 'name', text: value ?? ''});
}

function toggle(run, on) {
  change({run: on ? [...state.run, run] : state.run.filter((id) => id !== run)});
}

function tableRow(row) {
  const chosen = state.run.includes(row.id);
  const box = el('input', {type: 'checkbox', checked: chosen, 'aria-label': `show ${row.name}, ${row.id}`,
                           'data-run': row.id, onchange: (event) => toggle(row.id, event.target.checked)});
  return el('tr', {class: chosen ? 'chosen' : ''},
            el('td', {class: 'name', title: row.id}, el('label', {}, box, ' ', swatch(colorOfRun(row.id)), row.name)),
            ...state.column.map((column) => cell(row, column)));
}

function sortButton(column, label) {
  const falling = state.sort === `-${column}`;
  const rising = state.sort === column;
  const next = falling ? column : rising ? '' : `-${column}`;
  return el('th', {scope: 'col', class: kNumbers.has(column) ? 'number' : '',
                   'aria-sort': falling ? 'descending' : rising ? 'ascending' : 'none'},
            el('button', {type: 'button', 'data-sort': column, onclick: () => change({sort: next}),
                          text: `${label}${falling ? ' \u2193' : rising ? ' \u2191' : ''}`}));
}

function draw() {
  const table = byId('run-table');
  const held = document.activeElement;
  const focus = table.contains(held) ? held.dataset : null;
  const head = el('thead', {}, el('tr', {}, sortButton('name', 'run'),
                                  ...state.column.map((column) => sortButton(column, kColumns[column] ?? column))));
  const bodies = [];
  const groups = new Map();
  for (const row of rows) {
    const key = state.grouped ? row.experiment : '';
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  for (const [experiment, members] of groups) {
    const body = el('tbody');
    if (state.grouped) {
      body.append(el('tr', {class: 'group'},
                     el('th', {scope: 'rowgroup', colspan: state.column.length + 1,
                               text: `${experiment || 'no experiment'} (${members.length})`})));
    }
    body.append(...members.map(tableRow));
    bodies.push(body);
  }
  table.replaceChildren(head, ...bodies);
  if (focus?.run) table.querySelector(`[data-run="${CSS.escape(focus.run)}"]`)?.focus();
  if (focus?.sort) table.querySelector(`[data-sort="${CSS.escape(focus.sort)}"]`)?.focus();
}

export function startRuns() {
  const query = byId('query');
  query.value = state.q;
  let waiting = 0;
  query.addEventListener('input', () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => change({q: query.value}), 150);
  });
  byId('search').addEventListener('submit', (event) => event.preventDefault());
  byId('grouped').checked = state.grouped !== '';
  byId('grouped').addEventListener('change', (event) => change({grouped: event.target.checked ? '1' : ''}));
  byId('none').addEventListener('click', () => change({run: []}));
  byId('more').addEventListener('click', () => {
    limit = kMost;
    refreshRuns();
  });
  state.column = state.column.filter((column) => column in kColumns);
  for (const [column, label] of Object.entries(kColumns)) {
    const box = el('input', {type: 'checkbox', checked: state.column.includes(column), onchange: () => {
      const order = Object.keys(kColumns);
      const wanted = new Set(state.column);
      box.checked ? wanted.add(column) : wanted.delete(column);
      change({column: order.filter((name) => wanted.has(name))});
    }});
    byId('columns').append(el('label', {}, box, ` ${label}`));
  }
  onChange((changed) => {
    if (changed.has('q') || changed.has('sort')) refreshRuns();
    else if (['run', 'column', 'grouped'].some((key) => changed.has(key))) draw();
  });
}
