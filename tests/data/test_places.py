from pathlib import Path

from fedmeta.data.readers.search_folders import not_found, places


def test_given_folder_then_environment_then_usual(monkeypatch):
    monkeypatch.setenv("FEDMETA_DATA", "/env")
    assert places("/given", "/usual") == (Path("/given"), Path("/env"), Path("/usual"))
    monkeypatch.delenv("FEDMETA_DATA")
    assert places(None, "/usual") == (Path("/usual"),)


def test_message_says_where_was_looked_and_what_to_do():
    text = str(not_found("cifar10", [Path("/a"), Path("/b")], "fetch it"))
    assert text == (
        "the files of cifar10 were not found (looked in: /a, /b): fetch it, and name their folder "
        "by the setting 'folder' or by $FEDMETA_DATA"
    )
    assert "looked in: no folder" in str(not_found("x", [], "fetch it"))
