"""Wrong versions of a schedule and of a loss scaler."""

from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import Arrays
from numpy_ref.exercises.mistakes import Replacements, Table, after, before

FLOAT32_MAX = (2 - 2**-23) * 2.0**127
BELOW_1 = "the scale is kept from falling below 1"
LATE = "the scale grows one step too late, or never"


def ticking(step: Any) -> Replacements:
    """A schedule."""
    return {"schedule_step": step}


def scaling(step: Any) -> Replacements:
    """A scaler."""
    return {"scaler_step": step}


def mistakes(right: Any, arrays: Arrays) -> Table:
    """See `numpy_ref.exercises.mistakes`."""
    cast, xp = arrays.cast, arrays.xp
    tick, scaler = right.schedule_step, right.scaler_step

    def is_bad(g: Any) -> bool:
        return not bool(xp.isfinite(g).all())

    def half(x: float) -> Any:
        return xp.asarray(x, dtype=xp.float16)

    def train(
        look: Any = lambda scaled, grads: any(map(is_bad, scaled)),
        unscaled: Any = lambda g, scale, following: cast(g, "float64") / scale,
        rate_of: Any = lambda rate, ticked, settings: rate,
        skipped: Any = lambda t, rate, ticked: (t, rate),
        always: bool = False,
        learns: bool = True,
    ) -> Replacements:
        def train(state: Any, sequence: Any, settings: Any) -> Any:
            params, t, rate, scale, tracker = right.save_state(state).values()
            for grads in sequence:
                scaled = right.scaled_gradients(grads, scale)
                found_inf = look(scaled, grads)
                following = scaler(scale, tracker, found_inf, settings["growth_interval"])
                ticked = tick(t, rate, settings["step_size"], settings["gamma"])
                if always or not found_inf:
                    now = rate_of(rate, ticked, settings)
                    params = [p - now * unscaled(g, scale, following[0]) for p, g in zip(params, scaled, strict=True)]
                t, rate = skipped(t, rate, ticked) if found_inf else ticked
                scale, tracker = following if learns or not found_inf else (scale, tracker)
            return {"params": params, "t": t, "rate": rate, "scale": scale, "tracker": tracker}

        return {"train": train}

    def train_on(change: Any) -> Replacements:
        return {"train": before(right.train, change)}

    def begun(change: Any) -> Replacements:
        return train_on(lambda state, sequence, settings: (state | change(settings), sequence, settings))

    def written(into: Any) -> Replacements:
        def train(state: Any, sequence: Any, settings: Any) -> Any:
            new = right.train(state, list(sequence), dict(settings))
            into(state, sequence, settings, new)
            return new

        return {"train": train}

    def saved(change: Any) -> Replacements:
        return {"save_state": lambda state: right.save_state(state) | change(state)}

    def without(key: str) -> Replacements:
        return {"save_state": after(right.save_state, lambda saved: {k: saved[k] for k in saved if k != key})}

    def restored(change: Any) -> Replacements:
        def restore_state(checkpoint: Any, settings: Any) -> Any:
            return right.restore_state(checkpoint, settings) | change(checkpoint, settings)

        return {"restore_state": restore_state}

    def anew(*keys: str) -> Replacements:
        def new(checkpoint: Any, settings: Any) -> Any:
            state = right.new_state(checkpoint["params"], settings)
            return {key: state[key] for key in keys}

        return restored(new)

    def stepped(found_inf: bool) -> Replacements:
        def step(saved: Any, settings: Any) -> Any:
            new = scaler(saved["scale"], saved["tracker"], found_inf, settings["growth_interval"])
            return dict(zip(("scale", "tracker"), new, strict=True))

        return restored(step)

    def shared(state: Any, sequence: Any, settings: Any) -> Any:
        state = right.save_state(state)
        scale, tracker = memory if state["t"] and memory else (state["scale"], state["tracker"])
        new = right.train(state | {"scale": scale, "tracker": tracker}, sequence, settings)
        memory[:] = [new["scale"], new["tracker"]] if sequence else memory
        return new

    memory: list[Any] = []
    table: Table = {
        "the-schedule-multiplies-once-a-period": [
            ("t is looked at before it grows", ticking(lambda t, rate, n, by: (t + 1, rate if t % n else rate * by))),
            (
                "the rate decays one tick too early",
                ticking(lambda t, rate, n, by: (t + 1, rate if (t + 2) % n else rate * by)),
            ),
            ("the rate decays at every tick", ticking(lambda t, rate, n, by: (t + 1, rate * by))),
            ("the rate never decays", ticking(lambda t, rate, n, by: (t + 1, rate))),
            (
                "all decays so far are made again, on a rate that has them",
                ticking(lambda t, rate, n, by: tick(t, rate, n, by ** ((t + 1) // n))),
            ),
            ("t does not grow", ticking(lambda t, *rest: (t, tick(t, *rest)[1]))),
        ],
        "the-scale-backs-off-and-grows": [
            (
                "the tracker is kept after an overflow",
                scaling(lambda s, k, bad, n: (s / 2, k) if bad else scaler(s, k, bad, n)),
            ),
            (
                "the tracker is kept after a growth",
                scaling(lambda s, k, bad, n: (scaler(s, k, bad, n)[0], 0 if bad else k + 1)),
            ),
            ("the scale does not back off", scaling(lambda s, k, bad, n: (s, 0) if bad else scaler(s, k, bad, n))),
            ("found_inf is not looked at", scaling(lambda s, k, bad, n: scaler(s, k, False, n))),
            ("the scale grows instead", scaling(lambda s, k, bad, n: (s * 2, 0) if bad else scaler(s, k, bad, n))),
            (LATE, scaling(lambda s, k, bad, n: scaler(s, k, bad, n + 1))),
            ("no growth", scaling(lambda s, k, bad, n: (s / 2, 0) if bad else (s, k + 1)), LATE),
            ("the scale grows one step too early", scaling(lambda s, k, bad, n: scaler(s, k, bad, n - 1))),
        ],
        "the-scale-has-no-floor-and-stays-finite": [
            (BELOW_1, scaling(lambda s, k, bad, n: (max(s / 2, 1.0), 0) if bad else scaler(s, k, bad, n))),
            (
                "the scale grows beyond what float32 holds",
                scaling(lambda s, k, bad, n: (s * 2, 0) if not bad and k + 1 >= n else scaler(s, k, bad, n)),
            ),
            (
                "the tracker is kept at the limit",
                scaling(lambda s, k, bad, n: scaler(s, k, bad, n) if bad or s * 2 <= FLOAT32_MAX else (s, k + 1)),
            ),
            (
                "a growth is refused below the limit",
                scaling(lambda s, k, bad, n: scaler(s, k, bad, n) if bad or s * 4 <= FLOAT32_MAX else (s, 0)),
            ),
        ],
        "an-overflow-skips-the-update": [
            (
                "the schedule ticks although the update is skipped",
                train(skipped=lambda t, rate, ticked: ticked),
            ),
            ("t counts an update that is skipped", train(skipped=lambda t, rate, ticked: (t + 1, rate))),
            (
                "the rate decays although the update is skipped",
                train(skipped=lambda t, rate, ticked: (t, ticked[1])),
            ),
            ("the update is made in spite of an overflow", train(always=True)),
            (
                "the gradients are looked at before they are scaled",
                train(lambda scaled, grads: any(map(is_bad, grads))),
            ),
            ("only the first array is looked at", train(lambda scaled, grads: is_bad(scaled[0]))),
            (
                "infinity is looked for, NaN is not",
                train(lambda scaled, grads: any(bool(xp.isinf(g).any()) for g in scaled)),
            ),
            ("the scaler does not step when the update is skipped", train(learns=False)),
        ],
        "training-takes-every-step": [
            (
                "the gradients are not divided by the scale",
                train(unscaled=lambda g, scale, following: cast(g, "float64")),
            ),
            (
                "the gradients are divided in float16, where a scale above 65504 is infinite",
                train(unscaled=lambda g, scale, following: cast(g / half(scale), "float64")),
            ),
            (
                "the gradients are multiplied by the inverse scale in float16, where it may be 0 or infinite",
                train(unscaled=lambda g, scale, following: cast(g * half(1 / scale), "float64")),
            ),
            (
                "the gradients are divided by the scale of the next step",
                train(unscaled=lambda g, scale, following: cast(g, "float64") / following),
            ),
            ("the schedule ticks before the update", train(rate_of=lambda rate, ticked, settings: ticked[1])),
            (
                "the rate of the settings is used in every step",
                train(rate_of=lambda rate, ticked, settings: settings["rate"]),
            ),
            (
                "the updates are made in float32",
                train(unscaled=lambda g, scale, following: cast(g, "float32") / scale),
            ),
            (
                "the last gradients are left out",
                train_on(lambda state, sequence, settings: (state, sequence[:-1], settings)),
            ),
        ],
        "calls-go-on-from-the-state": [
            (
                "the scale begins anew with every call",
                begun(lambda settings: {"scale": settings["scale"], "tracker": 0}),
            ),
            ("the tracker begins anew with every call", begun(lambda settings: {"tracker": 0})),
            (
                "the schedule begins anew with every call",
                begun(lambda settings: {"t": 0, "rate": settings["rate"]}),
            ),
        ],
        "arguments-are-left-alone": [
            (
                "the state is kept up to date",
                written(lambda state, sequence, settings, new: state.update(t=new["t"])),
                "train writes into state",
            ),
            (
                "the parameters are updated in place",
                written(lambda state, sequence, settings, new: state["params"][0].__imul__(2)),
                "train writes into state",
            ),
            (
                "train writes into grads_sequence",
                written(lambda state, sequence, settings, new: sequence.clear()),
            ),
            (
                "train writes into settings",
                written(lambda state, sequence, settings, new: settings.update(rate=new["rate"])),
            ),
            (
                "restore_state writes into checkpoint",
                restored(lambda checkpoint, settings: checkpoint.update(t=0) or {}),
            ),
        ],
        "the-checkpoint-holds-everything": [
            *[(f"{key} missing", without(key)) for key in ("tracker", "scale", "rate")],
            ("the tracker was lost: the next growth comes later", saved(lambda state: {"tracker": 0})),
            (
                "the scale was kept from falling below 1",
                saved(lambda state: {"scale": max(state["scale"], 1.0)}),
            ),
            ("t is one too large", saved(lambda state: {"t": state["t"] + 1})),
            ("the rate was rounded to float32", saved(lambda state: {"rate": float(np.float32(state["rate"]))})),
            (
                "t was rounded to float32, which cannot count so far",
                saved(lambda state: {"t": int(np.float32(state["t"]))}),
            ),
            (
                "the parameters were changed",
                saved(lambda state: {"params": [cast(p, "float32") for p in state["params"]]}),
            ),
        ],
        "the-checkpoint-is-independent": [
            (
                "shallow copy",
                saved(lambda state: {"params": list(state["params"])}),
                "the checkpoint changed when the state did",
            ),
            ("list kept", saved(lambda state: {"params": state["params"]}), "changed when the state did"),
            ("the state is its own checkpoint", {"save_state": lambda state: state}, "own dict, list or arrays"),
            (
                "hands out the checkpoint's own",
                restored(lambda checkpoint, settings: {"params": checkpoint["params"]}),
            ),
        ],
        "restoring-gives-back-the-state": [
            ("the tracker was lost: the next growth comes later", anew("tracker")),
            ("the scale began anew", anew("scale")),
            ("the scaler began anew", anew("scale", "tracker")),
            ("the schedule began anew", anew("t", "rate")),
            ("the rate began anew", anew("rate")),
            ("t was lost while the rate was kept: the next decay comes at another step", anew("t")),
            (
                "the rate was computed anew, by gamma ** (t // step_size), which rounds otherwise",
                restored(lambda saved, to: {"rate": to["rate"] * to["gamma"] ** (saved["t"] // to["step_size"])}),
            ),
            ("loading made a step of the scaler", stepped(False)),
            ("loading made a step of the scaler, as after an overflow", stepped(True)),
            (
                "loading made a tick of the schedule",
                restored(
                    lambda saved, to: dict(
                        zip(("t", "rate"), tick(saved["t"], saved["rate"], to["step_size"], to["gamma"]), strict=True)
                    )
                ),
            ),
            ("a new schedule and scaler came after the load", anew("t", "rate", "scale", "tracker")),
        ],
        "a-resume-equals-never-stopping": [
            (
                "nothing but the parameters is restored",
                anew("t", "rate", "scale", "tracker"),
                "the state was not restored",
            ),
            ("train takes something from elsewhere", {"train": shared}),
        ],
    }
    if arrays.framework == "torch":
        name = "the quotients are rounded to float16"
        quotient = train(unscaled=lambda g, scale, following: cast(g / scale, "float64"))
        table["training-takes-every-step"] += [(name, quotient)]
    return table
