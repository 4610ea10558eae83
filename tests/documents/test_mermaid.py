"""Mermaid itself draws each kind of diagram, and shows names as they are."""

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from examples.gpt2 import GPT2, Config
from examples.resnet import resnet50
from examples.simple_cnn import PooledCNN
from tests.render.test_graph import HOSTILE, named
from torchsummary_plus import summary

MERMAID = os.environ.get("MERMAID_JS", "")
"""The path of ``mermaid.min.js``, from the npm package mermaid."""

PAGE = """<!doctype html><meta charset=utf-8><body><script src="{script}"></script><script>
const texts = {texts};
(async () => {{
  mermaid.initialize({{startOnLoad: false, securityLevel: "strict"}});
  const found = [];
  for (const [i, text] of texts.entries()) {{
    try {{
      const box = document.createElement("div");
      box.innerHTML = (await mermaid.render("g" + i, text)).svg;
      document.body.append(box);
      found.push({{text: box.innerText, scripts: box.getElementsByTagName("script").length}});
    }} catch (error) {{ found.push({{error: String(error)}}); }}
  }}
  const result = document.createElement("pre");
  result.id = "result";
  result.textContent = JSON.stringify(found);
  document.body.append(result);
}})();
</script>"""


@pytest.mark.skipif(
    not (MERMAID and shutil.which("chromium")), reason="needs chromium, and MERMAID_JS to name the file"
)
def test_mermaid_itself_draws_every_kind(tmp_path: Path) -> None:
    results = [
        summary(PooledCNN(), (1, 28, 28), functional=True, verbose=0),
        summary(resnet50(), (3, 64, 64), verbose=0),
        summary(GPT2(Config(32, 12, 4, 50, 16)), (12,), verbose=0),
        summary(named(HOSTILE), (4,), functional=True, verbose=0),
    ]
    texts = [result.to_mermaid(kind) for result in results for kind in ("class", "flow")]
    page = tmp_path / "page.html"
    script = Path(MERMAID).resolve().as_uri()
    page.write_text(PAGE.format(script=script, texts=json.dumps(texts).replace("</", "<\\/")), encoding="utf-8")
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
         "--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=30000",
         "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    answer = re.search(r'<pre id="result">(.*?)</pre>', done.stdout, re.DOTALL)
    assert answer is not None
    drawn = json.loads(html.unescape(answer[1]))
    assert [diagram.get("error") for diagram in drawn] == [None] * len(texts)
    for diagram in drawn[-2:]:
        words = re.sub(r"\s|\\n", "", diagram["text"])  # A flowchart's \n is a new line.
        assert diagram["scripts"] == 0
        for name in HOSTILE:
            assert re.sub(r"\s", "", name) in words, name
