// What is shown. It is in the address behind '#', so that a link or a bookmark shows the same; the token is not.

import {kFirstTags} from './metrics.js';

const kLists = ['run', 'tag', 'column', 'mark'];
const kDefaults = {
  view: 'charts',
  run: [],
  tag: kFirstTags,
  column: ['status', 'step', 'loss', 'valid'],
  mark: [],
  q: '', sort: '', grouped: '',
  x: 'step', smooth: '0', logx: '', logy: '', clip: '', from: '', to: '',
  of: 'load', rank: '0',
};

export const state = read();
const listeners = [];

function read() {
  const address = new URLSearchParams(location.hash.slice(1));
  const found = {};
  for (const [key, value] of Object.entries(kDefaults)) {
    if (kLists.includes(key)) found[key] = address.has(key) ? address.getAll(key).filter((one) => one) : [...value];
    else found[key] = address.get(key) ?? value;
  }
  return found;
}

function write() {
  const address = new URLSearchParams();
  for (const [key, value] of Object.entries(kDefaults)) {
    if (kLists.includes(key)) {
      if (state[key].join('\n') === value.join('\n')) continue;
      for (const one of state[key].length > 0 ? state[key] : ['']) address.append(key, one);
    } else if (state[key] !== value) {
      address.set(key, state[key]);
    }
  }
  history.replaceState(null, '', `#${address}`);
}

// Calls listener(set of the keys that have changed).
export function onChange(listener) { listeners.push(listener); }

export function change(changes) {
  const changed = new Set();
  for (const [key, value] of Object.entries(changes)) {
    if (JSON.stringify(state[key]) !== JSON.stringify(value)) changed.add(key);
    state[key] = value;
  }
  if (changed.size === 0) return;
  write();
  for (const listener of listeners) listener(changed);
}

window.addEventListener('hashchange', () => {
  if (takeToken()) location.reload();
  else change(read());
});

let token = '';
try {
  token = localStorage.getItem('nmoe-token') ?? '';
} catch { /* a browser that keeps nothing: the link is needed every time */ }

// Out of the link that n viz has printed, into this page's own storage. Whether there was one.
function takeToken() {
  const address = new URLSearchParams(location.hash.slice(1));
  if (!address.has('token')) return false;
  token = address.get('token');
  try {
    localStorage.setItem('nmoe-token', token);
  } catch { /* see above */ }
  address.delete('token');
  history.replaceState(null, '', `#${address}`);
  return true;
}
takeToken();

export const accessToken = () => token;

const kColors = ['#3b7dd8', '#e0701f', '#2a9d5c', '#d0437e', '#8a63d2', '#b08900', '#1fa3b5', '#c8452f', '#6b8e23',
                 '#7f7f8c'];
export const colorOf = (index) => kColors[index % kColors.length];
export const colorOfRun = (run) => (state.run.includes(run) ? colorOf(state.run.indexOf(run)) : null);
