"""A small Flower app that imports another app in place.

flwr packs an app's folder and unpacks it into a new one at every run, where each process would have to compile it anew.
"""

import tomllib
from pathlib import Path

import tomli_w


def write_stub_app(app: Path, folder: Path, serverapp: str = "") -> Path:
    """Write a Flower app with the settings and components of `app` to `folder`, and return that.

    `serverapp`, MODULE:NAME of another ServerApp in the folder `app`, goes before the app's own.
    Raises ValueError where `app` is no Flower app.
    """
    try:
        project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
        described = project["tool"]["flwr"]["app"]
        publisher = described["publisher"]
        settings = described.get("config", {})
        texts = {}
        for kind, name in described["components"].items():
            if kind == "serverapp" and serverapp:
                name = serverapp
            module, attribute = name.split(":")
            texts[kind] = module_text(app.resolve(), kind, module, attribute)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{app}: its pyproject.toml describes no Flower app: {error}") from None
    folder.mkdir()
    components = {}
    for kind, text in texts.items():
        (folder / f"stub_{kind}.py").write_text(text, encoding="utf-8")
        components[kind] = f"stub_{kind}:{kind}"
    stub = {
        "project": {
            "name": "stub-app",
            "version": "1.0.0",
            "description": f"Imports {app}.",
            "license": "Apache-2.0",
        },
        "tool": {
            "flwr": {"app": {"publisher": publisher, "components": components, "config": settings}}
        },
    }
    (folder / "pyproject.toml").write_text(tomli_w.dumps(stub), encoding="utf-8")
    return folder


def module_text(app: Path, kind: str, module: str, attribute: str) -> str:
    """Return the module that imports one component; flwr wants to see that its name is given a value."""
    return (
        "import importlib\nimport operator\nimport sys\n\n"
        f"sys.path.insert(0, {str(app)!r})\n"
        f"{kind} = operator.attrgetter({attribute!r})(importlib.import_module({module!r}))\n"
    )
