// Runs named steps one after the other and keeps what became of each; mongosh loads this file as node does.
// A step fails if it throws, or if its result is another than the expected.
const outcomes = {};

async function step(name, run, expected) {
  try {
    const found = JSON.stringify(await run());
    if (found !== JSON.stringify(expected)) throw new Error(`${found} instead of ${JSON.stringify(expected)}`);
    outcomes[name] = 'passed';
  } catch (error) {
    outcomes[name] = `failed: ${error.message}`;
  }
}

if (typeof module !== 'undefined') module.exports = {step, outcomes};
