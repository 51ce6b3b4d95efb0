"""Names in Markdown: what a class, a site or an experiment is called is text there, whatever it holds."""


def escaped(text: object) -> str:
    """Return text that Markdown does not read as its own, nor a browser as HTML."""
    return " ".join(
        str(text).replace("|", r"\|").replace("*", r"\*").replace("<", "&lt;").splitlines()
    )
