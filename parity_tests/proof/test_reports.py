"""Faults that people have reported in public, on both packages: the stock trap is shown, and ours does not have it.

A comment `# B16` names the report that a test comes from. What other files hold to is not tried again here.
"""

import copy
import random  # noqa: TID251 - its state is what some loops save
import warnings
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import numpy_ref
from numpy_ref import rng
from numpy_ref.config import RunConfig
from numpy_ref.data import Position
from numpy_ref.proof import laws
from numpy_ref.proof.boundary import row_for
from numpy_ref.proof.equivalence import compare, digest
from numpy_ref.rng import init_stream
from numpy_ref.tree import map_leaves
from parity_tests.commands import python
from parity_tests.strategies import small_data

torch = pytest.importorskip("torch", reason="torch is missing: its traps cannot be shown")
from torch.nn.functional import dropout
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

import torch_port
from torch_port import data as port_data
from torch_port import optim
from torch_port import rng as port_rng
from torch_port.interop import (
    load_general,
    load_into_stock,
    save_general,
    snapshot_general,
    state_from_stock,
    tree_from_general,
)

nn = torch.nn
CONFIG = RunConfig(
    hidden=(6, 5),
    dropout=0.3,
    batch_norm=True,
    batch_size=4,
    schedule="step",
    step_size=3,
    weight_decay=0.01,
    noise=0.1,
    evaluate_every=2,
    seed=5,
)
DATA = small_data(1, samples=23)  # 19 samples for training: 5 steps an epoch
SAMPLES = len(DATA.labels)
STOP, STEPS = 7, 6  # in the second epoch, between two decays
EACH = pytest.mark.parametrize("impl", [numpy_ref, torch_port], ids=["numpy_ref", "torch_port"])
STREAMS = pytest.mark.parametrize("streams", [rng, port_rng], ids=["numpy_ref", "torch_port"])


def trained(impl, steps=STOP, config=CONFIG):
    return impl.train_n_steps(impl.init_run(config, DATA), DATA, steps)


def saved(impl, path, **kind):
    impl.save_checkpoint(path, trained(impl, **kind))
    return path


def moments(impl, run, steps=STEPS):
    return list(laws.follow(impl, run, DATA, steps))


def restored(impl, state, config=CONFIG):
    return impl.restore(config, state, run_id="a" * 32, fingerprint=DATA.fingerprint)


def facts(value):
    """Nested state of torch's as a tree that can be compared and digested."""
    if isinstance(value, dict):
        return {str(key): facts(item) for key, item in value.items()}
    if isinstance(value, list):
        return facts(dict(enumerate(value)))
    return np.array(value.detach().float().numpy()) if isinstance(value, torch.Tensor) else repr(value)


def small_model(*sizes):
    """Linear layers whose weights come from no generator of torch's."""
    numbers = np.random.default_rng(len(sizes))
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))
    model.to_empty(device="cpu")
    for tensor in model.state_dict().values():
        tensor.copy_(torch.tensor(numbers.standard_normal(tuple(tensor.shape))))
    return model


def stepped(model, optimizer, steps=1, scheduler=None):
    """The usual loop on one batch; the rates that it used."""
    rates = []
    for _ in range(steps):
        optimizer.zero_grad()
        x = torch.ones(2, next(p for p in model.parameters() if p.ndim > 1).shape[1])
        model(x).square().sum().backward()
        optimizer.step()
        rates.append(float(optimizer.param_groups[0]["lr"]))
        if scheduler is not None:
            scheduler.step()
    return rates


# References


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "SGD"])
def test_stepping_the_donor_of_a_state_moves_a_stock_heir_and_none_of_ours(kind):  # B13
    options = {"momentum": 0.9} if kind == "SGD" else {}
    moved = {}
    for module in (torch.optim, optim):
        models = [small_model(3, 2), small_model(3, 2)]
        donor, heir = (getattr(module, kind)(model.parameters(), lr=0.1, **options) for model in models)
        stepped(models[0], donor)
        heir.load_state_dict(donor.state_dict())
        before = digest(facts(heir.state_dict()))
        stepped(models[0], donor)
        moved[module.__name__] = digest(facts(heir.state_dict())) != before
    assert moved == {"torch.optim": True, "torch_port.optim": False}


@pytest.mark.parametrize("rate", ["a number", "a tensor"])
def test_a_kept_state_dict_is_half_stale_and_a_snapshot_is_what_a_file_of_that_step_holds(tmp_path, rate):  # B14 B19
    model = small_model(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1) if rate == "a tensor" else 0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    stepped(model, optimizer, 5, scheduler)
    kept = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    snapshot = snapshot_general(model, optimizer, scheduler, epoch=5, loss=0.0)
    save_general(tmp_path / "5.tar", snapshot)
    before, after = facts(kept), stepped(model, optimizer, 5, scheduler) and facts(kept)
    stale = set(compare(before, after).leaves)
    state = {f"optimizer/state/0/{key}" for key in ("step", "exp_avg", "exp_avg_sq")}
    assert stale >= state | {"model/0.weight"}
    assert ("optimizer/param_groups/0/lr" in stale) == (rate == "a tensor")
    assert compare(facts(load_general(tmp_path / "5.tar")), facts(snapshot)).holds
    assert compare(before, facts({name: snapshot[f"{name}_state_dict"] for name in kept})).holds


@EACH
@pytest.mark.parametrize("steps", [4, 10])
def test_the_best_weights_are_those_in_the_file_of_their_step_however_training_ends(tmp_path, impl, steps):  # B14 B16
    run = impl.init_run(replace(CONFIG, schedule="constant", dropout=0.0, batch_norm=False, noise=0.0), DATA)
    for step in range(2, steps + 1, 2):
        run = impl.train_n_steps(run, DATA, 2)
        impl.save_checkpoint(tmp_path / f"{step}", run)
        if step == 6:
            run = impl.resume_from_full_checkpoint(tmp_path / f"{step}", DATA)
    end = impl.snapshot(run)
    assert end.best.step == 4
    assert compare(impl.read_checkpoint(tmp_path / "4").model, end.best.model).holds
    assert compare(end.model, end.best.model).holds == (steps == 4)  # a best that refers to live weights always would


def overwrite(path):
    """Other bytes in the same file, as no writer of ours does it."""
    with path.open("r+b") as file:
        file.write(b"\xff" * path.stat().st_size)


def test_a_general_checkpoint_is_no_view_of_its_file_as_a_mapped_one_is(tmp_path):  # B17
    model = small_model(64, 64)
    for name in ("ours.tar", "mapped.tar"):
        save_general(tmp_path / name, snapshot_general(model, torch.optim.SGD(model.parameters()), epoch=0, loss=0.0))
    ours = load_general(tmp_path / "ours.tar")["model_state_dict"]["0.weight"]
    mapped = torch.load(tmp_path / "mapped.tar", mmap=True)["model_state_dict"]["0.weight"]
    assert torch.equal(mapped, model[0].weight)
    for name in ("ours.tar", "mapped.tar"):
        overwrite(tmp_path / name)
    assert torch.equal(ours, model[0].weight)
    assert not torch.equal(mapped, model[0].weight)


@EACH
def test_a_rate_is_a_plain_number_and_keeps_all_its_bits(tmp_path, impl):  # B19
    for rate in (np.array(0.001), torch.tensor(0.001)):
        with pytest.raises(TypeError, match="learning_rate: expected a number"):
            RunConfig(learning_rate=rate)
    path = saved(impl, tmp_path / "run", config=replace(CONFIG, learning_rate=np.float64(0.001), schedule="constant"))
    rate = impl.snapshot(impl.resume_from_full_checkpoint(path, DATA)).schedule.rate
    assert (rate, type(rate)) == (0.001, float)
    assert torch.tensor(0.001).item() != 0.001


@pytest.mark.parametrize("schedule", ["step", "warmup_cosine"])
def test_a_resumed_schedule_moves_the_live_optimizer_and_a_copied_one_its_own(tmp_path, schedule):  # B26
    config = replace(CONFIG, schedule=schedule, total_steps=20)
    path = saved(torch_port, tmp_path / "run", config=config)
    run = torch_port.resume_from_full_checkpoint(path, DATA)
    rate = run.optimizer.param_groups[0]["lr"]
    kept = copy.deepcopy(run.schedule)
    with warnings.catch_warnings(action="ignore"):  # of a schedule whose optimizer makes no update
        for _ in range(3):
            kept.step()
    assert run.optimizer.param_groups[0]["lr"] == rate != kept.optimizer.param_groups[0]["lr"]
    assert run.schedule.optimizer is run.optimizer
    expected = [moment.record.rate for moment in moments(numpy_ref, trained(numpy_ref, config=config))[1:]]
    found = [moment.record.rate for moment in moments(torch_port, run)[1:]]
    assert found == expected
    assert len(set(found)) > 1


class Nested(torch.optim.lr_scheduler.LRScheduler):
    """A schedule with another one inside, in its state too."""

    def __init__(self, optimizer):
        self.inner = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        super().__init__(optimizer)

    def get_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]


def chained(optimizer):
    schedules = torch.optim.lr_scheduler
    parts = [schedules.LinearLR(optimizer, 0.1, total_iters=4), schedules.StepLR(optimizer, 2, 0.5)]
    return schedules.SequentialLR(optimizer, parts, [4])


def test_a_chain_of_schedules_goes_on_and_one_that_carries_its_old_optimizer_is_refused(tmp_path):  # B26
    def objects(schedule):
        model = small_model(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, schedule(optimizer)

    model, optimizer, scheduler = objects(chained)
    expected = stepped(model, optimizer, 12, scheduler)
    model, optimizer, scheduler = objects(chained)
    stepped(model, optimizer, 3, scheduler)
    save_general(tmp_path / "run.tar", snapshot_general(model, optimizer, scheduler, epoch=3, loss=0.0))
    checkpoint, heirs = load_general(tmp_path / "run.tar"), objects(chained)
    for name, thing in zip(("model", "optimizer", "scheduler"), heirs, strict=True):
        thing.load_state_dict(checkpoint[f"{name}_state_dict"])
    assert stepped(heirs[0], heirs[1], 9, heirs[2]) == expected[3:]
    with pytest.raises(ValueError, match=r"scheduler_state_dict/inner: expected a tensor or .*, found StepLR"):
        snapshot_general(*objects(Nested), epoch=0, loss=0.0)


# Random generators


@contextmanager
def global_generators_kept():
    """Whatever happens inside, the global generators are afterwards as they were."""
    ours, pythons = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        yield
    np.random.set_state(ours)  # noqa: NPY002
    random.setstate(pythons)


def seed_everything():
    torch.default_generator.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)


def draw_everything():
    torch.rand(5)
    np.random.rand(5)  # noqa: NPY002
    random.random()


@EACH
@pytest.mark.parametrize("disturb", [seed_everything, draw_everything])
def test_a_resume_does_not_depend_on_global_generators_which_stock_dropout_and_order_follow(
    tmp_path, impl, disturb
):  # B40 B44 B55
    path, expected = saved(impl, tmp_path / "run"), moments(impl, trained(impl))
    with global_generators_kept():
        seed_everything()
        stock = [dropout(torch.ones(64)), torch.randperm(64)]
        later = torch.get_rng_state()
        next_mask = dropout(torch.ones(64))
        run = impl.resume_from_full_checkpoint(path, DATA)
        torch.set_rng_state(later)
        disturb()
        assert not torch.equal(dropout(torch.ones(64)), next_mask)
        if disturb is seed_everything:  # the mask of step 0 again, and in each restart the order of epoch 0
            seed_everything()
            again = [dropout(torch.ones(64)), torch.randperm(64)]
            assert all(torch.equal(*pair) for pair in zip(stock, again, strict=True))
        found = [*moments(impl, run, 0)]
        for _ in range(STEPS):
            disturb()
            records = []
            run = impl.train_n_steps(run, DATA, 1, on_step=records.append)
            found.append(laws.Moment(impl.snapshot(run), records[0]))
    assert laws.compare_runs(expected, found).holds


class Noisy(TensorDataset):
    """Draws noise for each sample that is fetched, from a generator that goes on."""

    def __init__(self, state):
        super().__init__(torch.zeros(SAMPLES))
        self.generator = port_rng.generator_from(state)

    def __getitem__(self, index):
        return super().__getitem__(index)[0] + torch.rand((), generator=self.generator)


class Fetching(port_data.Samples):
    """Notes what is fetched."""

    fetched: list[int]

    def __getitems__(self, places):
        self.fetched.extend(index for _, index in places)
        return super().__getitems__(places)


def test_consumed_samples_are_not_fetched_again_and_need_not_be():  # B43
    def batches(dataset):
        return (batch.tolist() for batch in DataLoader(dataset, batch_size=4))

    dataset = Noisy(init_stream(1, "noise"))
    never_stopped = batches(dataset)
    for _ in range(3):
        next(never_stopped)
    saved_state = port_rng.stream_state(dataset.generator)
    rest = list(never_stopped)
    assert list(batches(Noisy(saved_state)))[3:] != rest  # restored, and moved by skipping
    dataset = Noisy(init_stream(2, "noise"))
    skipped = batches(dataset)
    for _ in range(3):
        next(skipped)
    dataset.generator = port_rng.generator_from(saved_state)
    assert list(skipped) == rest  # skipped, then restored

    order, samples = init_stream(1, "order"), Fetching(DATA, seed=3, noise=0.3)
    inputs = {}
    for consumed in (0, 12):
        samples.fetched = []
        sampler = port_data.PositionedSampler(SAMPLES, 4, order, Position(2, consumed))
        inputs[consumed] = [batch.inputs.tolist() for batch in port_data.init_loader(samples, sampler)]
        assert len(samples.fetched) == SAMPLES - consumed
    assert inputs[12] == inputs[0][3:]


PYTHONS = random.Random(1)
LEGACY = np.random.RandomState(1)
STATES = {
    "python": PYTHONS.getstate(),
    "torch": port_rng.generator_from(init_stream(1, "order")).get_state(),
    "PCG64": np.random.PCG64(1).state,
    "legacy": LEGACY.get_state(),
    "MT19937": np.random.MT19937(1).state,
    "a NumPy number": np.uint64(1),
}
STORABLE = {"python", "torch", "PCG64"}


@pytest.mark.parametrize("name", STATES)
def test_a_generators_state_comes_back_whole_from_a_general_file_or_is_refused_at_save(tmp_path, name):  # B49 B50 B53
    model = small_model(2, 2)
    checkpoint = snapshot_general(model, torch.optim.SGD(model.parameters()), epoch=0, loss=0.0)
    path = tmp_path / "run.tar"
    if name in STORABLE:
        save_general(path, checkpoint | {"state": STATES[name]})
        found = load_general(path)["state"]
        assert torch.equal(found, STATES[name]) if name == "torch" else found == STATES[name]
        assert type(found) is type(STATES[name])
        return
    torch.save({"state": STATES[name]}, path)  # written without complaint, and refused three days later
    with pytest.raises(Exception, match="Weights only load failed"):
        torch.load(path)
    with pytest.raises(ValueError, match=r"state.*: expected a tensor or a plain value, found"):
        save_general(path, checkpoint | {"state": STATES[name]})


OTHER_DRAWS = {
    "normals": lambda g, n: g.standard_normal(n),
    "32 bits": lambda g, n: g.integers(0, 2**31, n, dtype=np.uint32),
    "16 bits": lambda g, n: g.integers(0, 2**15, n, dtype=np.uint16),
    "half precision": lambda g, n: g.random(n, dtype=np.float32),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(OTHER_DRAWS)), st.integers(0, 9)), min_size=1, max_size=5))
@example([("normals", 1), ("32 bits", 3), ("16 bits", 1)])
def test_words_and_place_are_all_that_a_stream_of_ours_has_in_store(plan):  # B52
    live = resumed = rng.generator_from(init_stream(3, "any"))
    for kind, size in plan:
        resumed = rng.generator_from(rng.stream_state(resumed))
        assert OTHER_DRAWS[kind](live, size).tobytes() == OTHER_DRAWS[kind](resumed, size).tobytes()


SIZES = (1, 7, 15, 16, 17, 31, 64, 1003)
SPLITTABLE = {
    "words": lambda impl, g, n: impl.draw_words(g, n),
    "uniform": lambda impl, g, n: impl.draw_uniform(g, n),
    "integers": lambda impl, g, n: impl.draw_integers(g, n, 2**40),
    "bernoulli": lambda impl, g, n: impl.draw_bernoulli(g, 0.3, n),
}


@STREAMS
@given(size=st.sampled_from(SIZES), share=st.integers(0, 1003), kind=st.sampled_from(sorted(SPLITTABLE)))
@example(size=16, share=8, kind="uniform")
def test_a_draw_split_anywhere_with_a_save_between_is_the_whole_draw(streams, size, share, kind):  # B70 B154
    state, first = init_stream(3, "order"), min(share, size)
    whole = np.asarray(SPLITTABLE[kind](streams, streams.generator_from(state), size))
    generator = streams.generator_from(state)
    head = np.asarray(SPLITTABLE[kind](streams, generator, first))
    tail = SPLITTABLE[kind](streams, streams.generator_from(streams.stream_state(generator)), size - first)
    assert np.concatenate([head, np.asarray(tail)]).tobytes() == whole.tobytes()


@STREAMS
def test_advancing_by_a_count_of_draws_lands_elsewhere(streams):  # B70
    live = streams.generator_from(init_stream(3, "order"))
    streams.draw_uniform(live, 5, dtype=np.float64 if streams is rng else torch.float64)
    streams.draw_integers(live, 2, 2**40)
    replayed = streams.generator_from(init_stream(3, "order"))
    streams.draw_uniform(replayed, 7)
    assert streams.stream_state(live).pos != streams.stream_state(replayed).pos


@EACH
def test_one_evaluation_more_after_a_resume_changes_nothing(tmp_path, impl):  # B56
    run = impl.resume_from_full_checkpoint(saved(impl, tmp_path / "run"), DATA)
    impl.evaluate(run, DATA)
    assert laws.compare_runs(moments(impl, trained(impl)), moments(impl, run)).holds


# Data order and loader workers


@pytest.mark.parametrize("workers", [0, 2])
def test_the_next_order_does_not_depend_on_whether_the_end_of_an_epoch_was_asked_for(workers):  # P05
    data = small_data(1, samples=25)  # 20 for training: 5 whole batches

    def stock(counted):
        generator = port_rng.generator_from(init_stream(1, "order"))
        loader = DataLoader(range(20), 4, shuffle=True, generator=generator, num_workers=workers)
        batches = iter(loader)
        for _ in range(5):
            next(batches)
        if not counted:
            assert next(batches, None) is None
        return torch.cat(list(loader)).tolist()

    def ours(counted):
        sampler = port_data.PositionedSampler(20, 4, init_stream(1, "order"), Position(0, 0))
        batches = iter(port_data.init_loader(port_data.Samples(data), sampler, workers=workers))
        for _ in range(5):
            sampler.advance(len(next(batches).samples))
        if not counted:
            assert next(batches, None) is None
        assert sampler.position == Position(1, 0)
        return [index for batch in sampler for _, index in batch]

    assert ours(counted=True) == ours(counted=False)
    assert (stock(counted=True) == stock(counted=False)) == (workers == 2)  # workers ask ahead


KINDS = {
    "torch": (lambda seed: torch.Generator().manual_seed(seed), lambda g: torch.rand((), generator=g).item()),
    "numpy": (np.random.default_rng, lambda g: g.random()),
    "legacy": (lambda seed: np.random.RandomState(seed % 2**32), lambda g: g.random_sample()),
    "python": (random.Random, lambda g: g.random()),
}


class Drawing(TensorDataset):
    """Each sample with a draw of a generator, made in the constructor, at the first sample, or of the worker's seed."""

    def __init__(self, kind, made):
        super().__init__(torch.arange(8.0))
        (self.make, self.draw), self.made = KINDS[kind], made
        self.generator = self.make(0) if made == "in the constructor" else None

    def __getitem__(self, index):
        if self.generator is None:
            self.generator = self.make(0 if self.made == "at the first sample" else torch.initial_seed())
        return self.draw(self.generator)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("made", ["in the constructor", "at the first sample", "of the worker's seed"])
def test_a_generator_in_a_dataset_repeats_its_stream_in_each_worker_unless_made_of_the_workers_seed(kind, made):  # B73
    seeds = port_rng.generator_from(init_stream(1, "workers"))
    loader = DataLoader(Drawing(kind, made), num_workers=2, generator=seeds)
    epochs = [torch.cat(list(loader)).tolist() for _ in range(2)]
    repeated = made != "of the worker's seed"
    assert (epochs[0][::2] == epochs[0][1::2]) == repeated
    assert (epochs[0] == epochs[1]) == repeated


def noises(workers, epoch=0, consumed=0):
    """The noise of an epoch's samples, by their index."""
    samples = port_data.Samples(DATA, seed=3, noise=0.5)
    sampler = port_data.PositionedSampler(SAMPLES, 4, init_stream(1, "order"), Position(epoch, consumed))
    batches = list(port_data.init_loader(samples, sampler, workers=workers))
    inputs, indices = (torch.cat([getattr(b, name) for b in batches]) for name in ("inputs", "samples"))
    rows = (inputs - torch.from_numpy(DATA.inputs[indices.numpy()])).tolist()
    return dict(zip(indices.tolist(), map(tuple, rows), strict=True))


def test_noise_is_a_samples_own_whatever_worker_and_resume_point_and_a_workers_stream_is_not():  # B73 B74 B76
    epochs = [noises(2, epoch) for epoch in range(2)]
    assert len({row for epoch in epochs for row in epoch.values()}) == 2 * SAMPLES
    rest = noises(1, 1, consumed=8)
    assert len(rest) == SAMPLES - 8
    assert rest.items() <= epochs[1].items()
    assert noises(0, 1) == epochs[1]
    of_workers = []
    for workers in (1, 2):
        seeds = port_rng.generator_from(init_stream(1, "workers"))
        loader = DataLoader(Drawing("torch", "of the worker's seed"), num_workers=workers, generator=seeds)
        of_workers.append(torch.cat(list(loader)).tolist())
    assert of_workers[0] != of_workers[1]


class Seeds(port_data.Samples):
    """The seed of the worker that fetches, for data sets that draw."""

    def __getitems__(self, places):
        return get_worker_info().seed


def test_workers_seeds_of_epochs_never_meet_and_come_again_after_a_resume():  # B74
    def seeds(epoch, consumed=0):
        sampler = port_data.PositionedSampler(SAMPLES, 4, init_stream(1, "order"), Position(epoch, consumed))
        return list(port_data.init_loader(Seeds(DATA, seed=3), sampler, workers=2))

    epochs = [seeds(epoch) for epoch in range(3)]
    assert [len(set(epoch)) for epoch in epochs] == [2, 2, 2]
    assert len({seed for epoch in epochs for seed in epoch}) == 6
    assert set(seeds(1, consumed=8)) == set(epochs[1])
    by_id = [list(range(2)) for epoch in range(3)]
    by_sum = [[worker + epoch for worker in range(2)] for epoch in range(3)]
    assert [len({seed for epoch in way for seed in epoch}) for way in (by_id, by_sum)] == [2, 4]


class Tail(IterableDataset):
    """Goes on from an offset that the workers got with their copy."""

    offset = 0

    def __iter__(self):
        info = get_worker_info()
        return iter(range(self.offset + info.id, SAMPLES, info.num_workers))


def test_a_position_held_by_workers_stays_theirs_and_one_held_by_the_sampler_is_set_at_any_time():  # B65 B77
    stock = DataLoader(Tail(), batch_size=None, num_workers=2, persistent_workers=True)
    stock.dataset.offset = 16
    lengths = [len(list(stock))]
    stock.dataset.offset = 0  # after the workers have started
    lengths += [len(list(stock)) for _ in range(2)]
    assert lengths == [3, 3, 3]

    sampler = port_data.PositionedSampler(SAMPLES, 4, init_stream(1, "order"), Position(0, 16))
    samples = port_data.Samples(DATA)
    ours = port_data.init_loader(samples, sampler, workers=2)
    settings = {"num_workers": 2, "collate_fn": ours.collate_fn, "persistent_workers": True}
    lasting = DataLoader(samples, batch_sampler=sampler, **settings)
    for loader in (ours, lasting):
        sampler.order, sampler.position = init_stream(1, "order"), Position(0, 0)
        begun = iter(loader)
        next(begun)
        sampler.position = Position(0, 16)  # restored after the workers have started
        visits = []
        for _ in range(3):
            epoch = [i for batch in loader for i in batch.samples.tolist()]
            sampler.advance(len(epoch))
            visits.append(epoch)
        assert [len(epoch) for epoch in visits] == [3, SAMPLES, SAMPLES]
        assert max(Counter(visits[1]).values()) == max(Counter(visits[2]).values()) == 1
        assert visits[1] != visits[2]
        del begun


# Names, not places


def test_moments_follow_the_names_of_parameters_where_stock_goes_by_their_places():  # B88
    def pair(order):
        model = small_model(3, 3, 3)
        parameters = list(model.parameters())
        return model, torch.optim.Adam([parameters[i] for i in order], lr=0.1)

    model, optimizer = pair([0, 1, 2, 3])
    stepped(model, optimizer, 3)
    tree = state_from_stock(model, optimizer)
    other, heir = pair([2, 3, 0, 1])  # as a set might give them; the shapes tell nothing
    other.load_state_dict(model.state_dict())
    heir.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert not compare(tree, state_from_stock(other, heir)).holds
    load_into_stock(tree, other, heir)
    assert compare(tree, state_from_stock(other, heir)).holds


def test_moments_filed_by_address_are_lost_silently_by_stock_and_refused_by_ours():  # B94
    model = small_model(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    stepped(model, optimizer, 2)
    checkpoint = snapshot_general(model, optimizer, epoch=0, loss=0.0)
    state = checkpoint["optimizer_state_dict"]["state"]
    by_address = {id(p): state[i] for i, p in enumerate(model.parameters())}
    checkpoint["optimizer_state_dict"]["state"] = by_address
    heir = torch.optim.Adam(small_model(3, 2).parameters())
    heir.load_state_dict(checkpoint["optimizer_state_dict"])
    assert not any(heir.state.get(p) for group in heir.param_groups for p in group["params"])
    with pytest.raises(ValueError, match=r"state of parameter .*, which is in no group"):
        tree_from_general(checkpoint)


RESUMED = """
import sys, {impl} as impl
from numpy_ref.proof.equivalence import digest
from parity_tests.strategies import small_data
data = small_data(1, samples=23)
run = impl.train_n_steps(impl.resume_from_full_checkpoint(sys.argv[1], data), data, {steps})
print(digest(impl.snapshot(run)), hash("layer0.weight"))
"""


@EACH
def test_a_resume_in_a_new_process_with_another_hash_seed_is_the_run(tmp_path, impl):  # B88 B94
    path, program = saved(impl, tmp_path / "run"), RESUMED.format(impl=impl.__name__, steps=STEPS)
    answer = python("-c", program, path, cwd=tmp_path, PYTHONHASHSEED="7")
    assert (answer.returncode, answer.stderr) == (0, "")
    found, hashed = answer.stdout.split()
    assert found == digest(moments(impl, trained(impl))[-1].state)
    assert int(hashed) != hash("layer0.weight")  # the seed did reach it


def unfreezing(model, optimizer, step):
    """The first layer is frozen from step 5 to step 8."""
    model[0].requires_grad_(not 5 <= step < 8)


def growing(model, optimizer, step):
    """The first layer joins at step 6."""
    model[0].requires_grad_(step >= 6)
    if step >= 6 and len(optimizer.param_groups) == 1:
        optimizer.add_param_group({"params": list(model[0].parameters())})


@pytest.mark.parametrize("plan", [unfreezing, growing])
def test_moments_of_layers_that_are_frozen_or_join_late_survive_a_general_file(tmp_path, plan):  # B10 B89
    def objects():
        model = small_model(3, 3, 2)
        return model, torch.optim.Adam(model.parameters() if plan is unfreezing else model[1].parameters(), lr=0.1)

    def run(live, start, end):
        for step in range(start, end):
            plan(*live, step)
            stepped(*live)
        return facts(live[0].state_dict())

    expected = run(objects(), 0, 12)
    stop = 5 if plan is unfreezing else 8
    live = objects()
    run(live, 0, stop)
    plan(*live, stop)
    save_general(tmp_path / "run.tar", snapshot_general(*live, epoch=stop, loss=0.0))
    checkpoint, heirs = load_general(tmp_path / "run.tar"), objects()
    state = checkpoint["optimizer_state_dict"]
    assert len(state["state"]) == 4
    if plan is growing:  # the counters first, then the groups, then the moments
        with pytest.raises(ValueError, match="different number of parameter groups"):
            heirs[1].load_state_dict(state)
    plan(*heirs, checkpoint["epoch"])
    heirs[0].load_state_dict(checkpoint["model_state_dict"])
    heirs[1].load_state_dict(copy.deepcopy(state))
    assert compare(expected, run(heirs, stop, 12)).holds
    if plan is unfreezing:  # what a filter by "needs a gradient now" would lose
        lost = objects()
        plan(*lost, stop)
        lost[0].load_state_dict(checkpoint["model_state_dict"])
        needed = {i for i, p in enumerate(lost[0].parameters()) if p.requires_grad}
        lost[1].load_state_dict(state | {"state": {i: e for i, e in state["state"].items() if i in needed}})
        assert not compare(expected, run(lost, stop, 12)).holds


MISFITS = {
    "the whole checkpoint": (lambda tree: tree, r"model/0\.weight: missing(.|\n)*model/model: not expected"),
    "a name changed": (
        lambda tree: {name.replace("0.", "first."): x for name, x in tree["model"].items()},
        r"model/0\.weight: missing(.|\n)*model/first\.weight: not expected",
    ),
    "a name too many": (
        lambda tree: tree["model"] | {"extra": np.zeros(2, np.float32)},
        "model/extra: not expected",
    ),
    "one name of a tied weight": (
        lambda tree: {name: x for name, x in tree["model"].items() if name != "1.weight"},
        r"model/1\.weight: missing",
    ),
}


@pytest.mark.parametrize("case", MISFITS)
def test_weights_whose_names_do_not_match_are_refused_where_a_lax_stock_load_goes_on(case):  # B91 B92
    def tied():
        model = small_model(3, 3, 3)
        model[1].weight = model[0].weight
        return model

    change, message = MISFITS[case]
    donor, heir = tied(), tied()
    with torch.no_grad():
        donor[0].weight += 1
    arrays = change(state_from_stock(donor))
    before = facts(heir.state_dict())
    with pytest.raises(ValueError, match=message):
        load_into_stock({"model": arrays}, heir)
    assert compare(before, facts(heir.state_dict())).holds
    tensors = {name: torch.tensor(x) for name, x in arrays.items() if isinstance(x, np.ndarray)}
    heir.load_state_dict(tensors, strict=False)
    matched = not compare(before, facts(heir.state_dict())).holds
    assert matched == (case != "the whole checkpoint")  # of which no name matches, without an error


# Types and layouts


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_a_load_changes_no_type_where_stock_loads_do_so_silently(tmp_path, dtype):  # B95 P08
    model = small_model(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    stepped(model, optimizer, 3)
    tree = state_from_stock(model, optimizer)
    save_general(tmp_path / "run.tar", snapshot_general(model, optimizer, epoch=0, loss=0.0))
    file = load_general(tmp_path / "run.tar")

    other = small_model(3, 2).to(dtype)
    heir = torch.optim.Adam(other.parameters())
    before = facts(other.state_dict())
    with pytest.raises(ValueError, match=r"model/0\.weight: expected .*(bfloat16|float16|float64)"):
        load_into_stock({"model": tree["model"]}, other)
    with pytest.raises(ValueError, match=r"optimizer/m/0\.weight: expected "):
        load_into_stock(tree, other, heir)
    assert compare(before, facts(other.state_dict())).holds

    other.load_state_dict(file["model_state_dict"])
    heir.load_state_dict(file["optimizer_state_dict"])
    entry = heir.state[other[0].weight]
    assert (other[0].weight.dtype, entry["exp_avg"].dtype, entry["step"].dtype) == (dtype, dtype, torch.float32)
    exact = torch.equal(entry["exp_avg"].double(), optimizer.state[model[0].weight]["exp_avg"].double())
    assert exact == (dtype == torch.float64)
    kept = file["optimizer_state_dict"]["state"][0]["exp_avg"]
    assert (kept.dtype, torch.equal(kept, optimizer.state[model[0].weight]["exp_avg"])) == (torch.float32, True)


def test_moments_of_another_type_than_their_weights_are_kept_by_a_general_file_and_refused_in_the_tree(tmp_path):  # B95
    model = small_model(3, 2).half()
    optimizer = torch.optim.Adam(model.parameters())
    for p in model.parameters():
        small = {key: torch.full_like(p, 1e-9, dtype=torch.float32) for key in ("exp_avg", "exp_avg_sq")}
        optimizer.state[p] = {"step": torch.tensor(3.0)} | small
    save_general(tmp_path / "run.tar", snapshot_general(model, optimizer, epoch=0, loss=0.0))
    checkpoint = load_general(tmp_path / "run.tar")
    file, live = facts(checkpoint["optimizer_state_dict"]["state"]), facts(optimizer.state_dict()["state"])
    assert compare(live, file).holds
    with pytest.raises(ValueError, match=r"optimizer/v/0\.weight: expected float16 \(2, 3\), found float32"):
        tree_from_general(checkpoint)
    heir = torch.optim.Adam(model.parameters())
    heir.load_state_dict(checkpoint["optimizer_state_dict"])
    assert not heir.state[model[0].weight]["exp_avg_sq"].any()  # 1e-9 is nothing in half precision


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("types", [(torch.float64, torch.float32), (torch.float32, torch.float64)], ids=str)
def test_the_count_has_the_same_type_under_any_default_one_and_stocks_has_not(tmp_path, types):  # B97
    steps = []
    for dtype in types:
        with default_dtype(dtype):
            model = small_model(3, 2).float()
            optimizer = torch.optim.Adam(model.parameters())
            with torch.no_grad():
                for p in model.parameters():
                    p.grad = torch.ones_like(p)
            optimizer.step()
            steps.append(optimizer.state[model[0].weight]["step"].dtype)
    assert steps == list(types)
    with default_dtype(types[0]):
        path = saved(torch_port, tmp_path / "run")
    with default_dtype(types[1]):
        run = torch_port.resume_from_full_checkpoint(path, DATA)
        found = moments(torch_port, run)
    assert laws.compare_runs(moments(torch_port, trained(torch_port)), found).holds


LAYOUTS = {
    "Fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
}


@EACH
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_state_of_any_layout_is_saved_by_its_values(tmp_path, impl, layout):  # B100
    state = impl.snapshot(trained(impl))
    arranged = map_leaves(lambda _, x: LAYOUTS[layout](x) if isinstance(x, np.ndarray) and x.ndim else x, state)
    assert not all(x.flags.c_contiguous for x in arranged.model.values())
    assert arranged.model["layer0.weight"].tobytes("A") != state.model["layer0.weight"].tobytes() or layout == "strided"
    impl.save_checkpoint(tmp_path / "run", restored(impl, arranged))
    assert compare(state, impl.read_checkpoint(tmp_path / "run").state).holds


def test_a_channels_last_weight_and_its_moments_are_converted_by_their_values(tmp_path):  # B100
    def layer(memory_format):
        with torch.device("meta"):
            model = nn.Conv2d(3, 4, 2)
        model.to_empty(device="cpu")
        with torch.no_grad():
            model.weight.copy_(torch.arange(48.0).view(4, 3, 2, 2))
            model.bias.zero_()
        return model.to(memory_format=memory_format)

    model = layer(torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.arange(27.0).view(1, 3, 3, 3)).square().sum().backward()
    optimizer.step()
    moment = optimizer.state[model.weight]["exp_avg"]
    assert not moment.is_contiguous()
    stored = torch.tensor(moment.untyped_storage().tolist(), dtype=torch.uint8).view(torch.float32).view(moment.shape)
    assert not torch.equal(stored, moment)  # what bytes in storage order would be
    tree = state_from_stock(model, optimizer)
    assert tree["optimizer"].m["weight"].tolist() == moment.tolist()
    save_general(tmp_path / "run.tar", snapshot_general(model, optimizer, epoch=0, loss=0.0))
    assert compare(tree, tree_from_general(load_general(tmp_path / "run.tar"))).holds
    for memory_format in (torch.contiguous_format, torch.channels_last):
        other = layer(memory_format)
        heir = torch.optim.Adam(other.parameters())
        load_into_stock(tree, other, heir)
        assert compare(tree, state_from_stock(other, heir)).holds


# The boundary of the numbers


@contextmanager
def precise(precision):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def deterministic(flag):
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(flag)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)


@contextmanager
def threads(n):
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


FLAGS = [(precise, ("highest", "medium")), (deterministic, (False, True)), (threads, (1, 2))]


@pytest.mark.parametrize(("flag", "values"), FLAGS)
def test_a_flag_that_is_another_than_at_the_save_is_seen_and_costs_native_bits_alone(
    tmp_path, flag, values
):  # B148 B151 B152
    with flag(values[0]):
        path = saved(torch_port, tmp_path / "run")
        expected = moments(torch_port, trained(torch_port))
        written = torch_port.read_checkpoint(path).environment
        assert row_for(written, torch_port.environment(), arithmetic="native").name == "full resume, native"
    with flag(values[1]):
        now = torch_port.environment()
        assert laws.compare_runs(
            expected, moments(torch_port, torch_port.resume_from_full_checkpoint(path, DATA))
        ).holds
    assert row_for(written, now, arithmetic="native").name == "full resume, native, elsewhere"
    assert row_for(written, now, arithmetic="reproducible").name == "full resume, port"


# A count of steps in a type that cannot hold it

SHORT = [(torch.bfloat16, 2**8), (torch.float16, 2**11), (torch.float32, 2**24)]


@pytest.mark.parametrize(("dtype", "end"), SHORT)
@pytest.mark.parametrize("kind", ["Adam", "SGD"])
def test_a_count_loaded_in_a_short_type_goes_on_where_the_stock_one_stands_still(dtype, end, kind):  # B05
    for module, after in ((torch.optim, end), (optim, end + 1)):
        if module is torch.optim and kind == "SGD":
            continue  # it does not count
        model = small_model(3, 2)
        optimizer = getattr(module, kind)(model.parameters(), lr=0.1)
        stepped(model, optimizer)
        state = optimizer.state_dict()
        for entry in state["state"].values():
            entry["step"] = torch.tensor(float(end), dtype=dtype)
        optimizer.load_state_dict(state)
        stepped(model, optimizer)
        assert int(optimizer.state[model[0].weight]["step"]) == after


@pytest.mark.parametrize(("dtype", "end"), SHORT)
def test_a_count_that_stands_still_is_no_count(dtype, end):  # B05
    model = small_model(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    stepped(model, optimizer)
    for entry in optimizer.state.values():
        entry["step"] = torch.tensor(float(end), dtype=dtype)
    with pytest.raises(ValueError, match="optimizer/t: expected a count below the type's last exact one"):
        state_from_stock(model, optimizer)


# Modes of single modules


def test_an_evaluation_leaves_each_module_in_its_own_mode():  # B86
    run = torch_port.init_run(CONFIG, DATA)
    run.model.norm0.eval()
    modes = {name: module.training for name, module in run.model.named_modules()}
    torch_port.evaluate(run, DATA)
    assert {name: module.training for name, module in run.model.named_modules()} == modes


def test_a_mixed_mode_which_one_word_cannot_hold_is_refused_at_the_snapshot(tmp_path):  # B85, B86
    run = torch_port.init_run(CONFIG, DATA)
    run.model.norm0.eval()
    for use in (torch_port.snapshot, lambda r: torch_port.save_checkpoint(tmp_path / "run", r)):
        with pytest.raises(ValueError, match=r"mode: expected every module .* found norm0 in the other"):
            use(run)
    assert list(tmp_path.iterdir()) == []


# What `restore` is given


@EACH
def test_restore_refuses_what_is_no_state_of_the_configuration_and_names_each_leaf(impl):  # P08
    state = impl.snapshot(trained(impl))
    double = {name: x.astype(np.float64) for name, x in state.model.items() if name != "layer1.bias"}
    wrong = state._replace(model=double, step=7.0)
    with pytest.raises(ValueError, match=r"model/layer1\.bias: missing; model/layer0\.bias: expected float32") as error:
        restored(impl, wrong)
    assert "step: expected int, found float" in str(error.value)
    for model in ({}, {f"layer{i}.weight": np.zeros(3, np.float32) for i in range(3)}):
        with pytest.raises(ValueError, match=r"restore: model: expected layers with the hidden sizes \(6, 5\)"):
            restored(impl, state._replace(model=model))
    with pytest.raises(ValueError, match="restore: mode: expected 'train' or 'eval', found 'test'"):
        restored(impl, state._replace(mode="test"))
