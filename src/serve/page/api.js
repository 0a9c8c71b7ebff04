// What the server is asked (viz_server.h).
import {accessToken} from './state.js';

async function ask(path, parameters, signal) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    if (value === '' || value === null || value === undefined) continue;
    for (const one of Array.isArray(value) ? value : [value]) query.append(key, one);
  }
  const reply = await fetch(`api/${path}?${query}`, {headers: {Authorization: `Bearer ${accessToken()}`}, signal});
  if (reply.ok) return reply;
  let message = `the server answered ${reply.status}`;
  try {
    message = (await reply.json()).error;
  } catch { /* what it says is no JSON: it is not our server that answers */ }
  throw new Error(message);
}

export const getJson = async (path, parameters = {}, signal) => (await ask(path, parameters, signal)).json();
export const getText = async (path, parameters = {}, signal) => (await ask(path, parameters, signal)).text();

export const getBlob = async (path, parameters = {}, signal) => (await ask(path, parameters, signal)).blob();

// Buckets of a curve (window.h).
export async function getSeries(parameters, signal) {
  const bytes = await (await ask('series', parameters, signal)).arrayBuffer();
  const head = new DataView(bytes);
  const count = head.getUint32(4, true);
  const doubles = (column) => new Float64Array(bytes, 32 + 8 * count * column, count);
  const integers = (column) => new Uint32Array(bytes, 32 + 32 * count + 4 * count * column, count);
  return {
    first: head.getFloat64(8, true), end: head.getFloat64(16, true), size: Number(head.getBigInt64(24, true)),
    x: doubles(0), min: doubles(1), max: doubles(2), last: doubles(3), count: integers(0), bad: integers(1),
  };
}

// Arrays of all layers of a step (layers.h).
export async function getLayers(parameters, signal) {
  const bytes = await (await ask('layers', parameters, signal)).arrayBuffer();
  const head = new DataView(bytes);
  const [layers, columns, steps] = [4, 8, 12].map((at) => head.getUint32(at, true));
  return {
    columns, steps, step: Number(head.getBigInt64(16, true)),
    layers: new Uint32Array(bytes, 24, layers),
    values: new Float32Array(bytes, 24 + 4 * layers, layers * columns),
  };
}
