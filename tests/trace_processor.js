// Runs requests over a trace in Perfetto's own trace processor (WebAssembly) and writes its stream of answers.
// usage: node trace_processor.js FOLDER_WITH_THE_ENGINE TRACE REQUESTS
// REQUESTS is a file of messages for its RPC stream, each after its length (4 bytes, little endian).
'use strict';
const fs = require('node:fs');
const path = require('node:path');

const [folder, trace, requests] = process.argv.slice(2);

// What the engine expects of a web worker.
class LocalRequest {
  open(_method, url) { this.file = path.join(folder, path.basename(url)); }
  send() {
    const octets = fs.readFileSync(this.file);
    this.response = octets.buffer.slice(octets.byteOffset, octets.byteOffset + octets.byteLength);
    this.status = 200;
  }
}
const worker = {location: {href: `file://${folder}/engine_bundle.js`}};
const silent = {log() {}, info() {}, warn() {}, error() {}};
const names = ['self', 'WorkerGlobalScope', 'importScripts', 'location', 'XMLHttpRequest', 'console',
               'process', 'require', 'module'];
const values = [worker, function WorkerGlobalScope() {}, () => {}, worker.location, LocalRequest, silent];
new Function(...names, fs.readFileSync(path.join(folder, 'engine_bundle.js'), 'utf8'))(...values);

const answers = [];
const port = {postMessage(octets) { answers.push(Buffer.from(octets)); }};

function varint(value) {
  const octets = [];
  for (; value > 127; value = Math.floor(value / 128)) octets.push((value % 128) | 128);
  return Buffer.from([...octets, value]);
}

function* messages(octets) {
  for (let at = 0; at < octets.length;) {
    const size = octets.readUInt32LE(at);
    yield octets.subarray(at + 4, at + 4 + size);
    at += 4 + size;
  }
}

function run() {
  const data = fs.readFileSync(trace);
  // TraceProcessorRpcStream{msg{request: APPEND_TRACE_DATA, append_trace_data}}
  const body = Buffer.concat([Buffer.from([0x10, 1, 0xaa, 0x06]), varint(data.length), data]);
  port.onmessage({data: new Uint8Array(Buffer.concat([Buffer.from([0x0a]), varint(body.length), body]))});
  for (const message of messages(fs.readFileSync(requests))) port.onmessage({data: new Uint8Array(message)});
  process.stdout.write(Buffer.concat(answers), () => process.exit(0));
}

// The WebAssembly module is ready some time after the worker got its port.
worker.onmessage({data: port});
setTimeout(run, 500);
