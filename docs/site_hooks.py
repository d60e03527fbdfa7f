"""Hooks of the site: the README becomes its first page, and links out of docs/ lead to the repository."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)#\s]*)(#[^)]*)?\)")


def repository() -> str:
    """The address of the repository, which stands in pyproject.toml."""
    address: str = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]["Repository"]
    return address


def on_config(config: Any) -> Any:
    """Set the address of the repository; write out the pages of decisions, which the navigation names by a pattern, and other pages."""
    config["repo_url"], config["repo_name"] = repository(), "compcache"
    decisions = sorted(path.relative_to(_ROOT / "docs").as_posix() for path in (_ROOT / "docs/decisions").glob("*.md"))
    named = (_ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    others = [path.name for path in sorted((_ROOT / "docs").glob("*.md")) if not re.search(rf"\b{re.escape(path.name)}\b", named)]
    if others:
        config["nav"].append({"More": others})
    _name_decisions(config["nav"], decisions)
    return config


def _name_decisions(nav: list[Any], pages: list[str]) -> None:
    """Put the pages of decisions where the navigation has a pattern for them."""
    for item in nav:
        for title, content in item.items() if isinstance(item, dict) else ():
            if title == "Decisions":
                item[title] = pages
            elif isinstance(content, list):
                _name_decisions(content, pages)


def on_files(files: Any, *, config: Any) -> Any:
    """Add what lies beside docs/: the README as `index.md`, below the head of the home page; the change log."""
    from mkdocs.structure.files import File

    for source, page, head in (("README.md", "index.md", "---\ntemplate: home.html\n---\n"), ("CHANGELOG.md", "changelog.md", "")):
        text = (_ROOT / source).read_text(encoding="utf-8").partition("## Before 1.0")[0]
        files.append(File.generated(config, page, content=head + _LINK.sub(_from_readme(config), text)))
    return files


def _from_readme(config: Any) -> Any:
    def replace(match: re.Match[str]) -> str:
        path, anchor = match[2], match[3] or ""
        if path.startswith("docs/") and (path.endswith((".md", ".svg", ".png"))):
            return f"{match[1]}{path[5:]}{anchor})"
        return f"{match[1]}{config['repo_url']}/tree/main/{path}{anchor})"

    return replace


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """Point links that leave docs/ to the repository.

    Raises:
        SystemExit: what a link leads to is not in the repository.
    """
    here = (_ROOT / "docs" / page.file.src_path).parent

    def replace(match: re.Match[str]) -> str:
        path = Path(os.path.normpath(here / match[2]))
        if not match[2] or (path.is_relative_to(_ROOT / "docs") and path.suffix):
            return match[0]
        if not path.exists():
            raise SystemExit(f"{page.file.src_path}: {match[2]} is not in the repository")
        return f"{match[1]}{config['repo_url']}/tree/main/{path.relative_to(_ROOT).as_posix()}{match[3] or ''})"

    return markdown if page.file.src_path in ("index.md", "changelog.md") else _LINK.sub(replace, markdown)
