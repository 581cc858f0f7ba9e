"""The browser's files: found, addressed by content, and each vendored one with its licence and its checksum."""

import hashlib
import re

from ui.assets import static_folder, static_url


def test_the_address_of_the_files_changes_with_their_content():
    assert re.fullmatch(r"/static/[0-9a-f]{12}", static_url())


def test_every_vendored_file_is_the_one_its_table_names_and_has_a_licence():
    vendor = static_folder() / "vendor"
    table = (vendor / "VERSIONS.md").read_text("utf-8")
    for folder in (path for path in vendor.iterdir() if path.is_dir()):
        assert (folder / "LICENSE").is_file(), folder.name
        [script] = [path for path in folder.iterdir() if path.suffix in (".js", ".mjs")]
        assert hashlib.sha256(script.read_bytes()).hexdigest() in table, script.name


def test_the_formulas_have_their_style_and_fonts():
    katex = static_folder() / "vendor" / "katex"
    table = (katex.parent / "VERSIONS.md").read_text("utf-8")
    fonts = hashlib.sha256(b"".join(font.read_bytes() for font in sorted((katex / "fonts").iterdir())))
    assert fonts.hexdigest() in table
    style = katex / "katex.min.css"
    assert hashlib.sha256(style.read_bytes()).hexdigest() in table
    named = set(re.findall(r"url\(fonts/([\w-]+\.woff2)\)", style.read_text("utf-8")))
    assert named == {font.name for font in (katex / "fonts").iterdir()}


def test_no_file_of_the_page_names_another_host():
    for path in static_folder().iterdir():
        if path.suffix in (".js", ".css"):
            assert not re.search(r"https?://(?!www\.w3\.org)", path.read_text("utf-8")), path.name


def test_no_file_of_the_page_is_too_long_to_be_read_in_one_go():
    for path in static_folder().iterdir():
        if path.suffix in (".js", ".css"):
            assert len(path.read_text("utf-8").splitlines()) <= 400, path.name
