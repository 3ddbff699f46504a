// Validates the objects of *.json beside it by the schemas that upstream's types were compiled to.
// Packages are looked for where this file is: it is copied to where they are.
import { readdirSync, readFileSync } from "node:fs";

const folder = import.meta.dirname ?? new URL(".", import.meta.url).pathname;
let failed = 0;
for (const file of readdirSync(folder).filter((name) => name.endsWith(".json")).sort()) {
  const { from, kind, thing } = JSON.parse(readFileSync(`${folder}/${file}`, "utf8"));
  const types = await import(`${from}/${kind}`);
  try {
    new types[kind](thing).validate();
  } catch (error) {
    failed += 1;
    console.error(`${file}: ${error.message}`);
  }
}
process.exit(failed ? 1 : 0);
