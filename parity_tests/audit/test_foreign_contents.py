"""What a checkpoint of any origin holds: the kinds of state are told, and what a resume would lack."""

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: there is nothing to read its files with")

from parity_tests.audit.foreign_cases import a_loop, calling, mutant_tests, returning
from torch_port.audit import foreign
from torch_port.audit.foreign import contents, leaves


def test_kinds_are_told():
    whole = a_loop() | {"best_loss": 0.5, "config": {"epochs": 3}}
    kinds = {k.path: k.kind for k in foreign.kinds(foreign.leaves_of(whole))}
    assert kinds == {
        "model_state_dict": "model",
        "optimizer_state_dict": "optimizer",
        "scheduler_state_dict": "scheduler",
        "scaler_state_dict": "scaler",
        "rng": "generator",
        "epoch": "counter",
        "global_step": "counter",
        "sampler": "position",
        "ema": "ema",
        "best_loss": "best",
        "config": "other",
    }
    texts = {k.path: k.text for k in foreign.kinds(foreign.leaves_of(whole))}
    assert texts["optimizer_state_dict"] == "exp_avg of 6, exp_avg_sq of 6, step 1, lr 0.01"
    assert texts["rng"] == "torch, NumPy PCG64"
    assert texts["scheduler_state_dict"] == "last_epoch 1, _last_lr 0.01"
    assert texts["scaler_state_dict"] == "scale 65536.0, _growth_tracker 0"
    assert texts["model_state_dict"] == "43 numbers, float32, int64"
    for key in ("i", "it", "iteration", "iters", "global_step", "n_steps"):
        assert [k.kind for k in foreign.kinds(foreign.leaves_of({key: 3}))] == ["counter"]
    assert [k.kind for k in foreign.kinds(foreign.leaves_of({"i": "index"}))] == ["other"]
    hidden = {"a": whole["scheduler_state_dict"], "b": whole["scaler_state_dict"], "c": whole["optimizer_state_dict"]}
    hidden |= {"d": whole["model_state_dict"], "e": whole["rng"]["torch"], "f": {"_num_yielded": 3}}
    expected = ["model", "optimizer", "scheduler", "scaler", "generator", "position"]  # by their form alone
    assert [k.kind for k in foreign.kinds(foreign.leaves_of(hidden))] == expected
    assert not {"best", "ema"} & {k.kind for k in foreign.kinds(foreign.leaves_of(a_loop()["optimizer_state_dict"]))}


PARTS = {
    "model_state_dict": "no model",
    "optimizer_state_dict": "no optimizer",
    "scheduler_state_dict": "no scheduler",
    "scaler_state_dict": "no loss scaler",
    "rng": "no random generator",
    "sampler": "no position",
    "ema": "no moving",
    "best_loss": "no best",
}


def test_what_a_resume_would_lack_is_told():
    whole = a_loop() | {"best_loss": 0.5}
    whole["rng"] |= {"python": (3, (*range(1, 625), 624), None)}
    assert foreign.lacks(foreign.leaves_of(whole)) == []
    for part, text in PARTS.items():
        (line,) = foreign.lacks(foreign.leaves_of({k: v for k, v in whole.items() if k != part}))
        assert line.startswith(text)
    (line,) = foreign.lacks(foreign.leaves_of({k: v for k, v in whole.items() if k not in ("epoch", "global_step")}))
    assert line.startswith("no epoch or step")
    fresh = whole | {"optimizer_state_dict": whole["optimizer_state_dict"] | {"state": {}}}
    (line,) = foreign.lacks(foreign.leaves_of(fresh))
    assert line.startswith("no moments or counts in the optimizer")
    (line,) = foreign.lacks(foreign.leaves_of(whole | {"rng": {"torch": whole["rng"]["torch"]}}))
    assert line == "no generator of NumPy or Python; needed only if the loop or its data draw from it"


def test_leaves_are_counted_in_words(tmp_path):
    torch.save(torch.ones(3), tmp_path / "a.pt")
    assert foreign.inspect(tmp_path / "a.pt").lines()[0].endswith(" bytes, 1 leaf")


def of_no_generator(right, self, path, place, leaf):
    own = leaf.form == "generator" and place.part == path
    right(self, path, leaves._Place() if own else place, leaf)


KINDS, LACKS = test_kinds_are_told, test_what_a_resume_would_lack_is_told
MUTANTS = [
    (leaves, "kind_by_key", returning(lambda key, node: leaves.kind_by_words(key)), KINDS),
    (leaves, "kind_by_key", calling(lambda right, key, node: right(key, 0 if key == "i" else node)), KINDS),
    (leaves, "WORDS", lambda right: right | {"counter": "epoch epochs step steps iteration iter it"}, KINDS),
    (leaves, "SCALER_KEYS", returning({"none"}), KINDS),
    (leaves, "kind_by_form", calling(lambda right, x: None if (kind := right(x)) == "scheduler" else kind), KINDS),
    (leaves, "LOADER_KEYS", returning(set()), KINDS),
    (leaves, "kind_by_key", calling(lambda right, key, x: None if leaves.is_model(x) else right(key, x)), KINDS),
    (leaves._Walk, "add", calling(of_no_generator), KINDS),
    (contents, "LACKS", returning({}), LACKS),
    (foreign, "lacks", calling(lambda right, x: [text for text in right(x) if "moments or counts" not in text]), LACKS),
    (foreign, "lacks", calling(lambda right, x: [text for text in right(x) if "generator of" not in text]), LACKS),
]


test_every_law_kills_its_mutants = mutant_tests(MUTANTS)
