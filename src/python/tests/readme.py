"""Runs the Python lines of pages as a newcomer would: python readme.py README.md docs/python.md"""

import re
import sys
from pathlib import Path


def main(page):
    blocks = re.findall(r"^```python\n(.*?)^```", Path(page).read_text(), re.M | re.S)
    assert blocks, f"{page}: expected Python lines"
    for block in blocks:
        exec(compile(block, page, "exec"), {"__name__": "readme"})
    print(f"{page}: {len(blocks)} blocks of Python run")


for page in sys.argv[1:]:
    main(page)
