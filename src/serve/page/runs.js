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
const kGroups = ['experiment', 'status', 'host'];
const kKey = 'config.';  // in front of a key of the configuration that is a column
const kNumbers = new Set(['step', 'tokens', 'loss', 'valid', 'bpb', 'rate', 'checkpoint']);

let rows = [];
let limit = kPage;
let asking = null;
const known = new Map();  // run id -> row, of all that were listed or chosen
const listeners = [];

export const nameOf = (run) => known.get(run)?.name ?? run;
export const rowOf = (run) => known.get(run);
export function onRows(listener) { listeners.push(listener); }

const keyColumns = () => state.column.filter((column) => column.startsWith(kKey)).map((column) => column.slice(kKey.length));
const labelOf = (column) => kColumns[column] ?? column.slice(kKey.length);
const valueOf = (row, column) => (column.startsWith(kKey) ? row.config?.[column.slice(kKey.length)] : row[column]) ?? '';

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
    const key = keyColumns();
    const reply = await getJson('runs', {...parse(state.q), sort: state.sort, limit, key}, signal);
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
  return el('td', {class: 'name', text: valueOf(row, column)});
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
  if (column.startsWith(kKey)) return el('th', {scope: 'col', text: label});
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
                                  ...state.column.map((column) => sortButton(column, labelOf(column)))));
  const bodies = [];
  const groups = new Map();
  for (const row of rows) {
    const key = state.grouped ? valueOf(row, state.grouped) : '';
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(row);
  }
  for (const [group, members] of groups) {
    const body = el('tbody');
    if (state.grouped) {
      body.append(el('tr', {class: 'group'},
                     el('th', {scope: 'rowgroup', colspan: state.column.length + 1,
                               text: `${group === '' ? `no ${labelOf(state.grouped)}` : group} (${members.length})`})));
    }
    body.append(...members.map(tableRow));
    bodies.push(body);
  }
  table.replaceChildren(head, ...bodies);
  if (focus?.run) table.querySelector(`[data-run="${CSS.escape(focus.run)}"]`)?.focus();
  if (focus?.sort) table.querySelector(`[data-sort="${CSS.escape(focus.sort)}"]`)?.focus();
}

// What can be a column, and what runs can be grouped by.
function fillColumns() {
  const own = state.column.filter((column) => column.startsWith(kKey));
  const order = [...Object.keys(kColumns), ...own];
  byId('columns').replaceChildren(...order.map((column) => {
    const box = el('input', {type: 'checkbox', checked: state.column.includes(column), onchange: () => {
      const wanted = new Set(state.column);
      box.checked ? wanted.add(column) : wanted.delete(column);
      change({column: order.filter((name) => wanted.has(name))});
    }});
    return el('label', {}, box, ` ${labelOf(column)}`);
  }));
  const groups = [...kGroups, ...own];
  if (!groups.includes(state.grouped)) state.grouped = '';
  byId('grouped').replaceChildren(el('option', {value: '', text: 'none'}),
                                  ...groups.map((value) => el('option', {value, text: labelOf(value)})));
  byId('grouped').value = state.grouped;
}

// The keys that the first run's configuration has.
async function offerKeys() {
  if (rows.length === 0 || byId('column-keys').children.length > 0) return;
  const keys = [];
  const walk = (value, key) => {
    if (value === null || typeof value !== 'object' || Array.isArray(value)) keys.push(key);
    else for (const [name, member] of Object.entries(value)) walk(member, key === '' ? name : `${key}.${name}`);
  };
  try {
    walk((await getJson('run', {run: rows[0].id})).config ?? {}, '');
    byId('column-keys').replaceChildren(...keys.map((value) => el('option', {value})));
  } catch { /* then they are typed */ }
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
  byId('grouped').addEventListener('change', (event) => change({grouped: event.target.value}));
  byId('none').addEventListener('click', () => change({run: []}));
  byId('more').addEventListener('click', () => {
    limit = kMost;
    refreshRuns();
  });
  state.column = state.column.filter((column) => column in kColumns || column.startsWith(kKey));
  fillColumns();
  byId('add-column').addEventListener('submit', (event) => {
    event.preventDefault();
    const column = kKey + byId('column-key').value.trim();
    byId('column-key').value = '';
    if (column !== kKey && !state.column.includes(column)) change({column: [...state.column, column]});
  });
  byId('column-key').addEventListener('focus', offerKeys);
  onChange((changed) => {
    if (changed.has('column')) fillColumns();
    if (changed.has('q') || changed.has('sort') || (changed.has('column') && keyColumns().length > 0)) refreshRuns();
    else if (['run', 'column', 'grouped'].some((key) => changed.has(key))) draw();
  });
}
