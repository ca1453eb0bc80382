"""Finding and loading one backend: every fault of a package has its own clear message."""

import logging
import sys

import pytest

from kvevents_core import plugins
from kvevents_core.errors import BackendError
from kvevents_core.plugins import installed_backends, load_backend


def failure(name: str) -> BackendError:
    """Return the error of loading ``name``."""
    with pytest.raises(BackendError) as caught:
        load_backend(name)
    return caught.value


def listed(name: str) -> plugins.InstalledBackend:
    """Return the one listed backend of that name."""
    (found,) = [each for each in installed_backends() if each.name == name]
    return found


def test_listing_names_provider_and_version_and_imports_nothing(packages):
    """The list comes from metadata alone."""
    packages.add_backend("good")
    packages.add("kvevents-bad", {"bad": "fake_bad"}, module="fake_bad", source="1/0")
    before = set(sys.modules)
    good, bad = listed("good"), listed("bad")
    assert (good.distribution, good.version, good.entry_point) == (
        "kvevents-good",
        "0.1",
        "fake_good",
    )
    assert good.problem is None
    assert bad.problem is None
    new = {module.split(".")[0] for module in set(sys.modules) - before}
    assert new <= sys.stdlib_module_names


def test_our_own_backends_are_listed():
    """The four backends of this distribution come from its metadata."""
    ours = {each.name for each in installed_backends() if each.distribution == "kvevents"}
    assert ours == {"memory", "zmq", "nats", "kafka"}


def test_loading_imports_the_one_package_asked_for(packages):
    """The name may be typed in any case and with spaces around it."""
    packages.add_backend("good")
    packages.add_backend("other")
    assert load_backend(" Good ").name == "good"
    assert packages.imported() == {"fake_good"}


def test_loading_twice_is_quiet(packages):
    """Engines load plugins several times in a process."""
    packages.add_backend("good")
    assert type(load_backend("good")) is type(load_backend("good"))


def test_an_entry_point_name_in_capitals_is_the_same_name(packages):
    """Names are compared trimmed and in lower case on both sides."""
    packages.add("kvevents-x", {"Loud": "fake_loud"})
    assert listed("loud").entry_point == "fake_loud"


def test_unknown_name_lists_what_is_installed_and_the_nearest(packages):
    """A typing error is answered with the name that was meant."""
    packages.add_backend("redis")
    error = failure("rediss")
    assert (error.name, error.suggestion, error.distribution) == ("rediss", "redis", None)
    assert {"redis", "zmq", "kafka"} <= set(error.known)
    assert "did you mean 'redis'?" in str(error)


def test_null_is_no_backend(packages):
    """A package cannot take the name that means: none."""
    packages.add("kvevents-null", {"null": "fake_null"})
    assert "means no publisher" in (listed("null").problem or "")
    assert "null" not in failure("null").known


@pytest.mark.parametrize(
    ("statement", "cause"),
    [
        ("raise RuntimeError('no luck')", "RuntimeError: no luck"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise BaseException", "BaseException"),
        ("import warnings; warnings.warn('old', DeprecationWarning)", "DeprecationWarning: old"),
        ("import no_such_module_anywhere", "No module named 'no_such_module_anywhere'"),
        ("def (", "SyntaxError"),
    ],
)
def test_a_package_that_fails_to_import_is_named_and_disturbs_nobody(packages, statement, cause):
    """Whatever an import raises becomes one error with its cause; other backends load."""
    packages.add("kvevents-bad", {"bad": "fake_bad"}, module="fake_bad", source=statement)
    packages.add_backend("good")
    error = failure("bad")
    assert error.distribution == "kvevents-bad"
    assert "kvevents-bad 0.1 (fake_bad)" in str(error)
    assert cause in str(error)
    assert error.__cause__ is not None
    assert load_backend("good").name == "good"


def test_keyboard_interrupt_passes(packages):
    """The one thing a plugin's import may not hide from its caller."""
    packages.add("kvevents-x", {"x": "fake_x"}, module="fake_x", source="raise KeyboardInterrupt")
    with pytest.raises(KeyboardInterrupt):
        load_backend("x")


def test_a_missing_module_or_attribute_is_named(packages):
    """Entry points that point nowhere."""
    packages.add("kvevents-a", {"a": "fake_nowhere"})
    packages.add("kvevents-b", {"b": "fake_b:gone"}, module="fake_b")
    assert "No module named 'fake_nowhere'; install what it needs" in str(failure("a"))
    assert "has no attribute 'gone'" in str(failure("b"))


@pytest.mark.parametrize(
    ("source", "phrases"),
    [
        pytest.param(
            "@hookimpl\ndef kvevents_backends():\n    return Fake()",
            ("unknown hook 'kvevents_backends'", "the one hook is kvevents_backend()"),
            id="misspelt hook",
        ),
        pytest.param(
            "@hookimpl\ndef kvevents_backend(config):\n    return Fake()",
            ("hook 'kvevents_backend'", "config", "without parameters"),
            id="wrong signature",
        ),
        pytest.param(
            "def kvevents_backend():\n    return Fake()",
            ("no hook kvevents_backend", "mark it @hookimpl"),
            id="unmarked hook",
        ),
        pytest.param("", ("no hook kvevents_backend", "define it"), id="no hook"),
        pytest.param(
            "@hookimpl\ndef kvevents_backend():\n    return Fake",
            ("returned a ABCMeta, not a kvevents_core.Backend",),
            id="the class instead of an instance",
        ),
        pytest.param(
            "@hookimpl\ndef kvevents_backend():\n    return None",
            ("returned a NoneType",),
            id="nothing",
        ),
        pytest.param(
            "@hookimpl\ndef kvevents_backend():\n    raise SystemExit('bye')",
            ("its hook kvevents_backend failed: SystemExit: bye",),
            id="hook that raises",
        ),
        pytest.param(
            "Fake.name = 'other'" + "\n@hookimpl\ndef kvevents_backend():\n    return Fake()",
            ("named 'other'", "both names must be equal"),
            id="another name",
        ),
        pytest.param(
            "Fake.contract_version = 2\n@hookimpl\ndef kvevents_backend():\n    return Fake()",
            ("version 2 of the contract", "upgrade kvevents"),
            id="newer contract",
        ),
        pytest.param(
            "Fake.contract_version = 0\n@hookimpl\ndef kvevents_backend():\n    return Fake()",
            ("version 0 of the contract", "upgrade the backend"),
            id="older contract",
        ),
        pytest.param(
            "del Fake.contract_version\n@hookimpl\ndef kvevents_backend():\n    return Fake()",
            ("set contract_version",),
            id="no contract version",
        ),
        pytest.param(
            "Fake.capabilities = {}\n@hookimpl\ndef kvevents_backend():\n    return Fake()",
            ("capabilities",),
            id="wrong capabilities",
        ),
        pytest.param(
            "Fake.settings_model = dict\n@hookimpl\ndef kvevents_backend():\n    return Fake()",
            ("settings_model is not a subclass",),
            id="wrong settings",
        ),
        pytest.param(
            "del Fake.open_sink\nFake.__abstractmethods__ = frozenset({'open_sink'})\n"
            "@hookimpl\ndef kvevents_backend():\n    return Fake()",
            ("abstract", "open_sink"),
            id="unfinished class",
        ),
    ],
)
def test_each_broken_contract_has_its_own_message(packages, source, phrases):
    """The error names backend, distribution and what is wrong, and others still load."""
    packages.add_backend("bad", source=source)
    packages.add_backend("good")
    error = failure("bad")
    assert (error.name, error.distribution) == ("bad", "kvevents-bad")
    for phrase in phrases:
        assert phrase in str(error)
    assert load_backend("good").name == "good"


@pytest.mark.parametrize("attribute", ["Plugin", "make"])
def test_an_entry_point_may_name_a_class_or_a_factory(packages, attribute):
    """Core makes the plugin object."""
    source = """
    class Plugin:
        @hookimpl
        def kvevents_backend(self):
            return Fake()

    def make():
        return Plugin()
    """
    packages.add_backend("made", source=source, attribute=f":{attribute}")
    assert load_backend("made").name == "made"


def test_an_entry_point_that_names_the_backend_is_told_what_to_name(packages):
    """The mistake that everybody makes first."""
    packages.add_backend("direct", attribute=":Fake")
    assert "must name the module" in str(failure("direct"))


def test_two_distributions_of_one_name_are_refused_alike_in_any_order(packages):
    """Neither wins; the error names both and is the same whichever was found first."""
    packages.add("kvevents-b", {"twin": "fake_b"})
    packages.add("kvevents-a", {"twin": "fake_a"})
    packages.add_backend("good")
    error = failure("twin")
    assert "kvevents-a 0.1 (fake_a) and kvevents-b 0.1 (fake_b)" in str(error)
    problems = {each.problem for each in installed_backends() if each.name == "twin"}
    assert len(problems) == 1
    assert load_backend("good").name == "good"


def test_a_distribution_listed_twice_is_one(packages, tmp_path, monkeypatch):
    """Editable installs appear with egg-info and dist-info; a stale copy is shadowed."""
    packages.add_backend("twice")
    again = tmp_path / "again" / "kvevents_twice-0.0.9.dist-info"
    again.mkdir(parents=True)
    (again / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: KVevents_Twice\nVersion: 0.0.9\n"
    )
    (again / "entry_points.txt").write_text("[kvevents.backends]\ntwice = fake_stale\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(again.parent)])
    assert listed("twice").version == "0.1"
    assert load_backend("twice").name == "twice"


def test_a_clash_with_one_of_our_names_leaves_ours_working(packages, caplog):
    """The intruder is listed with the reason and named in a warning on use."""
    packages.add("kvevents-evil", {"memory": "fake_evil"}, module="fake_evil", source="1/0")
    problems = {e.distribution: e.problem for e in installed_backends() if e.name == "memory"}
    assert problems["kvevents"] is None
    assert "the name 'memory' belongs to kvevents" in (problems["kvevents-evil"] or "")
    with caplog.at_level(logging.WARNING):
        assert load_backend("memory").name == "memory"
    assert "kvevents-evil" in caplog.text
    assert not packages.imported()


def test_a_missing_extra_is_named_before_anything_is_imported(packages):
    """What the extra of the backend's name requires must be installed."""
    metadata = """\
    Provides-Extra: shiny
    Requires-Dist: no-such-client[tls]>=1,<2; extra == "shiny"
    Requires-Dist: pluggy>=1; extra == 'shiny'
    Requires-Dist: never-needed; extra == "other"
    Requires-Dist: not-for-us; python_version < "3" and extra == "shiny"
    """
    packages.add_backend("shiny", metadata=metadata)
    assert listed("shiny").missing == ("no-such-client",)
    error = failure("shiny")
    assert "it needs no-such-client, not installed" in str(error)
    assert "pip install 'kvevents-shiny[shiny]'" in str(error)
    assert not packages.imported()


def test_broken_metadata_costs_that_distribution_only(packages, caplog):
    """A line that is no entry point does not hide other packages."""
    packages.add("kvevents-torn", {"torn": "fake_torn"})
    info = packages.folder / "kvevents_torn-0.1.dist-info"
    (info / "entry_points.txt").write_text("[kvevents.backends]\nno equals sign\n")
    packages.add_backend("good")
    assert load_backend("good").name == "good"
    assert "kvevents_torn" in caplog.text


def test_a_slow_import_is_told(packages, monkeypatch, caplog):
    """Engines import the backend in every process, so a slow one is worth a warning."""
    packages.add_backend("slow")
    monkeypatch.setattr(plugins, "SLOW_IMPORT_S", -1.0)
    load_backend("slow")
    assert "importing backend slow of kvevents-slow 0.1 (fake_slow) took" in caplog.text
