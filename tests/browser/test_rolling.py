"""edgerelax.js in Node: texts longer than the context, and than the cache, as in Python."""

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerelax
from edgerelax.chat.engine import Sampling
from edgerelax.chat.paged import PagedEngine
from tests.browser.harness import LIBRARY
from tests.frontends.language.test_cache import VOCABULARY, only, tiny

NODE = """
import { readFile } from 'node:fs/promises';
const [library, folder, given] = process.argv.slice(2);
const { loadEngine } = await import(library);
const fetch = async (url) => new Response(await readFile(new URL(String(url).split('?')[0])));
const { options, rounds } = JSON.parse(given);
const sampling = {
  temperature: 0, topP: 1, topK: 0, minP: 0, repetitionPenalty: 1, presencePenalty: 0,
  frequencyPenalty: 0, seed: 1, logitBias: new Map(),
};
const read = async (engine, { prompt, count, inFlight }) => {
  const signal = new AbortController().signal;
  const how = { limit: count, signal, onPrompt: () => undefined, inFlight };
  const ids = [];
  for await (const { id } of engine.generate(prompt, sampling, how)) ids.push(id);
  return ids;
};
try {
  const engine = await loadEngine(folder, { fetch, ...options });
  const answers = [];
  for (const texts of rounds) {
    answers.push(await Promise.all(texts.map((text) => read(engine, text))));
  }
  console.log(JSON.stringify({ answers, context: engine.context, answer: engine.answer }));
} catch ({ code, message }) {
  console.log(JSON.stringify({ code, message }));
}
process.exit();
"""
Text = dict[str, Any]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("node") / "engine.mjs"
    path.write_text(NODE)
    return path


def in_node(script: Path, folder: Path, rounds: Sequence[Sequence[Text]], **options: int) -> Any:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node")
    given = json.dumps({"options": options, "rounds": rounds})
    command = [node, str(script), LIBRARY.as_uri(), folder.as_uri(), given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def in_python(folder: Path, texts: Sequence[Text], **options: int) -> list[list[int]]:
    with edgerelax.load(folder, "cpu") as session:
        language = session.artifact.manifest.language
        assert language is not None
        engine = PagedEngine(session, language, **options)
        found = []
        for text in texts:
            sampling = Sampling(max_tokens=text["count"], temperature=0.0)
            with engine.generate(text["prompt"], sampling) as stream:
                found.append([token.id for token in stream])
    return found


def text_of(length: int, count: int, flight: int) -> Text:
    prompt = np.random.default_rng(length).integers(0, VOCABULARY, length).tolist()
    return {"prompt": prompt, "count": count, "inFlight": flight}


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every layer has a window, one of them nearly as long as the texts' own."""
    folder = tmp_path_factory.mktemp("rolling") / "model"
    used = ("step", "greedy", "sample", "adjusted", "top", "count", "clear", "shift")
    module = only(tiny(context=1024, windows=(60, 20)), *used)
    edgerelax.compile(module, target="cpu", variants=("cpu",)).save(folder)
    return folder


def test_texts_past_the_window(script: Path, artifact: Path) -> None:
    """One after another, with steps in flight; then together, where there is room for one alone."""
    texts = [text_of(3, 90, 1), text_of(64, 90, 4), text_of(150, 70, 4)]
    wanted = in_python(artifact, texts, window=64, sinks=5)
    assert wanted != in_python(artifact, texts)
    window = {"window": 64, "sinks": 5}
    for room in (256, 80):
        rounds = [[text] for text in texts] + [[*texts, texts[0]]]
        found = in_node(script, artifact, rounds, cacheTokens=room, **window)
        assert found["answers"] == [[ids] for ids in wanted] + [[*wanted, wanted[0]]]
        assert (found["context"], found["answer"]) == (2**31, 64)
    small = in_node(script, artifact, [], cacheTokens=48, **window)
    assert small["code"] == "input" and "room for 48" in small["message"]
    wide = in_node(script, artifact, [], window=1025)
    assert wide["code"] == "input" and "a window of 1025 tokens with 4 sinks" in wide["message"]


def test_a_windowed_text_longer_than_the_cache(script: Path, artifact: Path) -> None:
    texts = [text_of(500, 30, 4)]
    found = in_node(script, artifact, [texts], cacheTokens=60 + 256 + 2 * 16)
    assert found["answers"] == [in_python(artifact, texts)] and found["context"] == 1024
