"""Settings: declared, filled from every kind of source, updated, saved and shown."""
# ruff: noqa: RUF009 - setting() makes a field, it does not compute a shared default

import stat
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from tianzhou.config.files import replace_file
from tianzhou.config.live import LiveSettings, save_pairs
from tianzhou.config.properties import (
    Property,
    decode_text,
    edit_properties,
    format_property,
    parse_properties,
)
from tianzhou.config.settings import (
    Change,
    Given,
    environment_name,
    from_environment,
    from_file,
    load,
    path_setting,
    render_properties,
    render_table,
    setting,
    settings_of,
    show,
    update,
)
from tianzhou.errors import ConfigError, SettingRefused


class Flavour(StrEnum):
    SWEET = "SWEET"
    SOUR = "SOUR"


@dataclass(frozen=True, slots=True, kw_only=True)
class ThingConfig:
    listen_port: int = setting(9876, "TCP port", maximum=65535)
    page_size: int = setting(
        4096, "bytes per page", key="thingPageSize", change=Change.FIXED, size=True, minimum=1
    )
    eager: bool = setting(False, "do it at once", change=Change.LIVE)
    ratio: float = setting(0.75, "share of the disk", change=Change.LIVE, maximum=1)
    flavour: Flavour = setting(Flavour.SWEET, "taste", change=Change.LIVE)
    folder: Path = path_setting(lambda: Path("here"), "where things are", aliases=("thing.dir",))
    note: str | None = setting(None, "free text", change=Change.LIVE)
    password: str | None = setting(None, "secret word", secret=True)


def given(**pairs: str) -> list[Given]:
    return [Given(key, text, "test") for key, text in pairs.items()]


# -- the format of java.util.Properties -----------------------------------------------------------

# Each right side is what java.util.Properties of JDK 17 makes of the left one.
AS_JAVA_READS: list[tuple[str, dict[str, str]]] = [
    ("a=1", {"a": "1"}),
    ("a:1", {"a": "1"}),
    ("a 1", {"a": "1"}),
    ("a \t\f= \t\f1", {"a": "1"}),
    ("a = = 1", {"a": "= 1"}),
    ("a : = 1", {"a": "= 1"}),
    ("a", {"a": ""}),
    ("a=", {"a": ""}),
    ("=1", {"": "1"}),
    ("a=1 ", {"a": "1 "}),
    ("  # no\n\t! no\n\n \f\na=#1", {"a": "#1"}),
    ("# no \\\na=1", {"a": "1"}),
    ("a=1\\\n   2", {"a": "12"}),
    ("a=1\\\\\n2", {"a": "1\\", "2": ""}),
    ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
    ("a=1\\\n#2", {"a": "1#2"}),
    ("a=1\\", {"a": "1"}),
    ("a=1\rb=2\r\nc=3", {"a": "1", "b": "2", "c": "3"}),
    ("a\\=b=1", {"a=b": "1"}),
    ("a\\ b\\:=1", {"a b:": "1"}),
    ("a=\\t\\n\\r\\f\\q\\\\", {"a": "\t\n\r\fq\\"}),
    ("a=\\u0041\\u00e9\\u5929", {"a": "Aé天"}),
    ("a=\\uD83D\\uDE00", {"a": "\N{GRINNING FACE}"}),
    ("a=\\U0041", {"a": "U0041"}),
    ("\\\n#no", {}),
    ("a=1\na=2", {"a": "2"}),
    ("a=é天", {"a": "é天"}),
    ("a=\x0b1\x85", {"a": "\x0b1\x85"}),
]


@pytest.mark.parametrize(("text", "pairs"), AS_JAVA_READS)
def test_properties_are_read_as_java_reads_them(text: str, pairs: dict[str, str]) -> None:
    assert {found.key: found.value for found in parse_properties(text, "x")} == pairs


def test_a_pair_knows_the_line_it_begins_on() -> None:
    text = "# head\na=1\\\n  2\n\nb=3"
    assert parse_properties(text, "x") == [Property("a", "12", 2), Property("b", "3", 5)]


@pytest.mark.parametrize("text", ["ok=1\na=\\u00g0", "ok=1\na=\\u12", "ok=1\n\\u=1"])
def test_a_malformed_unicode_escape_names_its_line(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^conf/x\.properties:2: .*four hexadecimal digits"):
        parse_properties(text, "conf/x.properties")


def test_bytes_are_utf8_where_they_can_be_and_latin1_otherwise() -> None:
    assert decode_text("a=é天".encode()) == ("a=é天", "utf-8")
    assert decode_text("a=é".encode("iso-8859-1")) == ("a=é", "iso-8859-1")
    assert decode_text(b"\xef\xbb\xbfa=1") == ("a=1", "utf-8-sig")


def test_a_written_pair_is_plain_ascii_and_reads_back() -> None:
    key, value = "# a=b:c d!", "  x\\y\tz\n é天\N{GRINNING FACE} "
    line = format_property(key, value)
    assert line.isascii()
    assert "\n" not in line
    assert parse_properties(line, "x") == [Property(key, value, 1)]


def test_ordinary_values_are_written_as_they_are() -> None:
    line = format_property("namesrvAddr", "127.0.0.1:9876;[::1]:9876")
    assert line == "namesrvAddr=127.0.0.1:9876;[::1]:9876"


def test_editing_keeps_comments_order_and_line_ends() -> None:
    text = "# head\r\nb = 1\\\r\n   2\r\n\r\n! middle\r\na=1\r\na=2\r\nc:3"
    assert edit_properties(text, {"a": "5", "b": "x", "new": "y"}) == (
        "# head\r\nb=x\r\n\r\n! middle\r\na=1\r\na=5\r\nc:3\r\nnew=y\r\n"
    )


def test_editing_an_empty_file_writes_the_pairs() -> None:
    assert edit_properties("", {"a": "1", "b": "2"}) == "a=1\nb=2\n"


def test_a_new_pair_does_not_continue_an_unfinished_one() -> None:
    edited = edit_properties("a=1\\\n", {"b": "2"})
    assert {found.key: found.value for found in parse_properties(edited, "x")} == {
        "a": "1",
        "b": "2",
    }


# -- values ---------------------------------------------------------------------------------------


def test_defaults_come_with_their_origin() -> None:
    loaded = load(ThingConfig, [])
    assert loaded.config == ThingConfig()
    assert loaded.config.folder == Path("here")
    assert set(loaded.origins.values()) == {"default"}


def test_values_of_every_kind_are_read() -> None:
    config = load(
        ThingConfig,
        given(
            listenPort=" 80 ", thingPageSize="64K", eager="TRUE", ratio="0.5", flavour="sour",
            folder="~/x", note="hello",
        ),
    ).config  # fmt: skip
    assert config == ThingConfig(
        listen_port=80,
        page_size=65536,
        eager=True,
        ratio=0.5,
        flavour=Flavour.SOUR,
        folder=Path.home() / "x",
        note="hello",
    )


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("2k", 2048), ("3MB", 3 << 20), ("1 GiB", 1 << 30), ("7b", 7)]
)
def test_sizes_may_have_units(text: str, size: int) -> None:
    assert load(ThingConfig, given(thingPageSize=text)).config.page_size == size


def test_an_empty_text_clears_an_optional_value() -> None:
    assert load(ThingConfig, given(note="x") + given(note="")).config.note is None


@pytest.mark.parametrize(
    ("key", "text", "expectation"),
    [
        ("listenPort", "ninety", "'ninety' is not a whole number from 0 to 65535"),
        ("listenPort", "65536", "'65536' is not a whole number from 0 to 65535"),
        ("listenPort", "-1", "'-1' is not a whole number from 0 to 65535"),
        ("listenPort", "1_000", "'1_000' is not a whole number from 0 to 65535"),
        ("listenPort", "٣", "'٣' is not a whole number from 0 to 65535"),
        ("listenPort", "1.5", "'1.5' is not a whole number from 0 to 65535"),
        ("thingPageSize", "0", "'0' is not a size in bytes such as 65536, 64K or 1G, at least 1"),
        ("thingPageSize", "1X", "'1X' is not a size in bytes such as 65536, 64K or 1G, at least 1"),
        ("eager", "yes", "'yes' is not true or false"),
        ("ratio", "nan", "'nan' is not a number from 0 to 1"),
        ("ratio", "inf", "'inf' is not a number from 0 to 1"),
        ("flavour", "BITTER", "'BITTER' is not one of SWEET, SOUR"),
        ("folder", "", "'' is not a path"),
        ("folder", "a\0b", "is not a path"),
    ],
)
def test_a_bad_value_says_where_it_stands_and_what_is_expected(
    tmp_path: Path, key: str, text: str, expectation: str
) -> None:
    file = tmp_path / "thing.properties"
    file.write_text(f"# comment\n{format_property(key, text)}\n")
    with pytest.raises(ConfigError) as caught:
        load(ThingConfig, from_file(file))
    assert str(caught.value).startswith(f"{file}:2: {key}: ")
    assert expectation in str(caught.value)


def test_a_bad_secret_is_not_repeated() -> None:
    @dataclass(frozen=True, slots=True, kw_only=True)
    class PinConfig:
        pin: int = setting(0, "number", secret=True)

    with pytest.raises(ConfigError) as caught:
        load(PinConfig, given(pin="hunter2"))
    assert "hunter2" not in str(caught.value)


# -- sources --------------------------------------------------------------------------------------


def test_flag_beats_environment_beats_file_beats_default(tmp_path: Path) -> None:
    file = tmp_path / "thing.properties"
    file.write_text("listenPort=1\nratio=0.1\neager=true\n")
    environ = {"THING_LISTEN_PORT": "2", "THING_RATIO": "0.2", "OTHER": "x"}
    loaded = load(
        ThingConfig,
        [
            *from_file(file),
            *from_environment(ThingConfig, environ, "THING_"),
            Given("listenPort", "3", "flag --port"),
        ],
    )
    assert (loaded.config.listen_port, loaded.config.ratio, loaded.config.eager) == (3, 0.2, True)
    assert loaded.origins["listen_port"] == "flag --port"
    assert loaded.origins["ratio"] == "environment THING_RATIO"
    assert loaded.origins["eager"] == f"{file}:3"
    assert loaded.origins["note"] == "default"


def test_an_alias_means_the_same_field() -> None:
    assert load(ThingConfig, [Given("thing.dir", "/x", "test")]).config.folder == Path("/x")
    environ = {"THING_THING_DIR": "/y"}
    loaded = load(ThingConfig, from_environment(ThingConfig, environ, "THING_"))
    assert loaded.config.folder == Path("/y")


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("listenPort", "X_LISTEN_PORT"),
        ("tls.server.keyPath", "X_TLS_SERVER_KEY_PATH"),
        ("mapedFileSizeCommitLog", "X_MAPED_FILE_SIZE_COMMIT_LOG"),
        ("brokerIP1", "X_BROKER_IP1"),
    ],
)
def test_environment_names(key: str, name: str) -> None:
    assert environment_name("X_", key) == name


def test_an_unknown_key_is_a_warning_with_the_nearest_known_one(tmp_path: Path) -> None:
    file = tmp_path / "thing.properties"
    file.write_text("listenProt=1\nzzz=2\n")
    loaded = load(ThingConfig, from_file(file))
    assert loaded.config == ThingConfig()
    assert loaded.warnings == (
        f"{file}:1: unknown key listenProt, did you mean listenPort?",
        f"{file}:2: unknown key zzz",
    )
    assert loaded.others == {"listenProt": "1", "zzz": "2"}


def test_an_unknown_key_typed_on_purpose_is_an_error() -> None:
    with pytest.raises(ConfigError, match="flag --set: unknown key eagre, did you mean eager"):
        load(ThingConfig, [Given("eagre", "true", "flag --set", deliberate=True)])


def test_a_key_without_effect_is_noted_and_kept() -> None:
    loaded = load(ThingConfig, given(threads="8"), {"threads": "there are none"})
    assert loaded.notes == ("test: threads has no effect: there are none",)
    assert loaded.warnings == ()
    assert loaded.others == {"threads": "8"}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.properties"
    with pytest.raises(ConfigError, match=r"missing\.properties: cannot be read: No such file"):
        from_file(missing)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        from_file(tmp_path)


# -- updating -------------------------------------------------------------------------------------


def test_an_update_replaces_values_and_says_who_did_it() -> None:
    loaded = load(ThingConfig, given(listenPort="1"))
    changed, pairs = update(loaded, [Given("eager", "true", "mqadmin"), Given("zzz", "1", "x")])
    assert changed.config == ThingConfig(listen_port=1, eager=True)
    assert changed.origins["eager"] == "mqadmin"
    assert pairs == {"eager": "true"}
    assert loaded.config.eager is False


def test_a_wrong_update_changes_nothing() -> None:
    settings = LiveSettings(load(ThingConfig, []))
    wrong = [Property("eager", "true", 1), Property("ratio", "7", 2)]
    with pytest.raises(ConfigError, match="ratio: '7' is not a number from 0 to 1"):
        settings.prepare(wrong, "mqadmin")
    assert settings.config == ThingConfig()


def test_a_fixed_setting_keeps_its_value() -> None:
    settings = LiveSettings(load(ThingConfig, []))
    with pytest.raises(ConfigError, match="thingPageSize is fixed"):
        settings.prepare([Property("thingPageSize", "1", 1)], "mqadmin")


def test_secrets_under_names_that_nobody_knows_are_not_shown() -> None:
    named = {"initAuthenticationUser": "u:p", "tlsKeyPasword": "p", "myToken": "t", "colour": "red"}
    text = render_properties(load(ThingConfig, given(**named)))
    for key in named:
        assert f"{key}={named[key] if key == 'colour' else '(hidden)'}" in text.splitlines()


def test_a_request_changes_no_setting_that_is_not_opened_to_requests() -> None:
    settings = LiveSettings(load(ThingConfig, []))
    with pytest.raises(SettingRefused, match="listenPort: no request changes it; set it in the"):
        settings.prepare([Property("eager", "true", 1), Property("listenPort", "2", 2)], "mqadmin")
    listed = {"eager"}
    with pytest.raises(SettingRefused, match="black list"):
        settings.prepare([Property("eager", "true", 1)], "mqadmin", black_list=listed)
    assert settings.config == ThingConfig()


def test_a_prepared_update_counts_once_it_is_adopted() -> None:
    settings = LiveSettings(load(ThingConfig, []))
    prepared = settings.prepare([Property("flavour", "sour", 1)], "mqadmin")
    assert settings.config == ThingConfig()
    settings.activate(prepared)
    assert settings.config == ThingConfig(flavour=Flavour.SOUR)
    assert prepared.pairs == {"flavour": "SOUR"}
    assert "flavour=SOUR\n" in settings.as_properties()


def test_saving_keeps_the_rest_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "thing.properties"
    file.write_bytes(b"# caf\xe9\neager=false\nother=1\n")
    file.chmod(0o640)
    save_pairs(file, {"eager": "true", "ratio": "0.5"})
    assert file.read_bytes() == b"# caf\xe9\neager=true\nother=1\nratio=0.5\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert list(tmp_path.iterdir()) == [file]


def test_saving_makes_the_file_and_its_folders(tmp_path: Path) -> None:
    file = tmp_path / "a" / "b" / "thing.properties"
    save_pairs(file, {"eager": "true"})
    assert file.read_text() == "eager=true\n"


def test_saving_where_no_file_can_be_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(ConfigError, match=r"plain/thing\.properties: cannot be saved: "):
        save_pairs(tmp_path / "plain" / "thing.properties", {"eager": "true"})


def test_replacing_a_file_through_a_link_keeps_the_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target", tmp_path / "link"
    target.write_text("old")
    link.symlink_to(target)
    replace_file(link, b"new")
    assert link.is_symlink()
    assert target.read_text() == "new"


# -- showing --------------------------------------------------------------------------------------


def test_properties_are_sorted_complete_and_read_back() -> None:
    loaded = load(ThingConfig, given(note="x y", zzz="1"))
    text = render_properties(loaded)
    keys = [line.partition("=")[0] for line in text.splitlines()]
    assert keys == sorted([*(declared.key for declared in settings_of(ThingConfig)), "zzz"])
    again = load(ThingConfig, [Given(p.key, p.value, "x") for p in parse_properties(text, "x")])
    assert again.config == loaded.config


def test_the_table_has_value_origin_and_meaning() -> None:
    lines = render_table(load(ThingConfig, given(listenPort="1"))).splitlines()
    assert lines[0].split() == ["KEY", "VALUE", "FROM", "CHANGE", "MEANING"]
    assert lines[1].split() == ["listenPort", "1", "test", "local", "TCP", "port"]
    assert len(lines) == 1 + len(settings_of(ThingConfig))


def test_a_secret_is_never_shown() -> None:
    loaded = load(ThingConfig, given(password="hunter2"))  # noqa: S106 - that is the test
    assert loaded.config.password == "hunter2"  # noqa: S105 - that is the test
    shown = {row.key: row.value for row in show(loaded)}
    assert shown["password"] == "(hidden)"  # noqa: S105 - what is shown instead
    assert "hunter2" not in render_properties(loaded) + render_table(loaded)
