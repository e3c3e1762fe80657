"""Parameters of the commands that open a run: the user's own code, named again."""

from __future__ import annotations

from fedmeta.cli.command import Parameter

OWN_CODE = (
    Parameter("model", str, "Your own network, named again.", metavar="FILE.PY:FUNCTION"),
    Parameter("loss", str, "Your own loss, named again.", metavar="FILE.PY:FUNCTION"),
)
