"""Every pipeline can be found, and every option of its own is documented."""

from dataclasses import fields
from pathlib import Path

import pytest

from tianzhou.errors import ConfigError
from tianzhou.spark.options import ClusterOptions, option_name
from tianzhou.spark.pipelines import __main__, catalog

PAGE = Path(__file__).resolve().parents[4] / "docs" / "pipelines.md"


@pytest.mark.parametrize("name", catalog.PIPELINES)
def test_every_option_is_documented(name: str) -> None:
    page = PAGE.read_text()
    of_clusters = {option_name(field.name) for field in fields(ClusterOptions)} | {"database"}
    own = set(catalog.option_defaults(name)) - of_clusters
    assert own
    missing = [each for each in own if f"`{each}`" not in page and f"`{each}=" not in page]
    assert not missing
    assert own <= set(catalog.option_meanings(name))
    assert f"`{name}`" in page or f"### {name}\n" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "NAME OPTION=VALUE ... is expected"),
        (["topic-stat"], "did you mean topic-stats?"),
        (["topic-stats", "days"], "days: OPTION=VALUE is expected"),
    ],
)
def test_invalid_arguments_are_rejected(arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        __main__.parse(arguments)
    assert message in str(caught.value)


def test_the_program_for_clusters_reports_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["topic-stats", "nameServer=a:1", "zone=Moon"]) == 2
    assert "a time zone such as UTC" in capsys.readouterr().err
