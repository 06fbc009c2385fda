"""Models fetched by name: `hf:OWNER/NAME`, or `hf:OWNER/NAME@REVISION`.

The fetching is `huggingface_hub`'s, with its cache and its login. Of a repository only what a model is made of is asked
for, by exact name: weights as safetensors, and descriptions as JSON or templates. A pickle is never fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tapeless.errors import TapelessError

SCHEME = "hf:"
NAME = re.compile(r"hf:(?P<repo>[\w.-]{1,96}/[\w.-]{1,96})(?:@(?P<revision>[\w./-]{1,200}))?", re.ASCII)
BESIDE = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "model.safetensors.index.json",
)
WEIGHTS = re.compile(r"model(?:-\d{1,6}-of-\d{1,6})?\.safetensors")
LONGEST_REASON = 160


@dataclass(frozen=True)
class Fetched:
    folder: Path
    origin: str  # hf:OWNER/NAME@COMMIT
    name: str


def is_hub_name(given: str) -> bool:
    return given.startswith(SCHEME)


def fetch(given: str, *, endpoint: str | None = None, quiet: bool = False) -> Fetched:
    """The files of a model, in the cache that transformers uses, too. `endpoint`: another hub than HF_ENDPOINT names,
    or the usual one."""
    found = NAME.fullmatch(given)
    if found is None:
        raise TapelessError(f"{given[:80]!r} names no model: say {SCHEME}OWNER/NAME, or {SCHEME}OWNER/NAME@REVISION.")
    try:
        import huggingface_hub as hub
        from huggingface_hub import errors
        from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
    except ModuleNotFoundError:
        raise TapelessError("fetching a model needs huggingface_hub: pip install 'tapeless[hub]'.") from None
    repo = found["repo"]
    shown = not are_progress_bars_disabled()
    if quiet:
        disable_progress_bars()
    try:
        with _refused(errors, repo, found["revision"]):
            info = hub.HfApi(endpoint=endpoint).model_info(repo, revision=found["revision"])
            names = _chosen(repo, [each.rfilename for each in info.siblings or ()])
            places = [Path(hub.hf_hub_download(repo, name, revision=info.sha, endpoint=endpoint)) for name in names]
    finally:
        if quiet and shown:
            enable_progress_bars()
    return Fetched(places[0].parent, f"{SCHEME}{repo}@{info.sha}", repo.rpartition("/")[2])


def _chosen(repo: str, listed: list[str]) -> list[str]:
    weights = [name for name in listed if WEIGHTS.fullmatch(name)]
    if not weights:
        pickled = next((name for name in listed if name.endswith((".bin", ".pt", ".pth", ".pkl"))), None)
        if pickled is not None:
            raise TapelessError(
                f"{repo} has its weights as pickle only ({pickled[:60]}), which can run code and is not fetched: take "
                f"a model that has model.safetensors."
            )
        raise TapelessError(f"{repo} holds no model.safetensors, so there are no weights to fetch: choose another.")
    if "model.safetensors" in weights:  # then the shards are the same once more
        weights = ["model.safetensors"]
    if "config.json" not in listed:
        raise TapelessError(f"{repo} holds no config.json, so nobody knows what model its weights are.")
    return ["config.json", *(name for name in BESIDE[1:] if name in listed), *weights]


@contextmanager
def _refused(errors: Any, repo: str, revision: str | None) -> Iterator[None]:
    """What goes wrong between here and a hub, each in a sentence."""
    try:
        yield
    except (TapelessError, MemoryError):
        raise
    except errors.GatedRepoError:  # a kind of RepositoryNotFoundError
        raise TapelessError(
            f"{repo} is gated: accept its terms on its page, then log in with `hf auth login`."
        ) from None
    except errors.RepositoryNotFoundError:
        raise TapelessError(
            f"there is no model {repo} on the hub, or it is private: look at its name, or log in with `hf auth login`."
        ) from None
    except errors.RevisionNotFoundError:
        raise TapelessError(f"{repo} has no revision {revision!r}: leave it out for the newest.") from None
    except errors.HFValidationError as error:
        raise TapelessError(f"{SCHEME}{repo} names no model: {_brief(error)}.") from None
    except errors.OfflineModeIsEnabled:
        raise TapelessError(
            f"HF_HUB_OFFLINE is set, so {repo} is not fetched: unset it, or import a folder that is here."
        ) from None
    except OSError as error:  # the disk, and the hub's own errors, which derive from it
        raise TapelessError(f"{repo} could not be fetched: {_brief(error)}.") from None
    except Exception as error:  # of whichever HTTP library it uses
        raise TapelessError(
            f"the hub could not be reached for {repo} ({_brief(error)}): is there a network? A folder that is here "
            f"can be imported without."
        ) from None


def _brief(error: Exception) -> str:
    return " ".join(str(error).split())[:LONGEST_REASON].rstrip(".") or type(error).__name__
