"""The adapting part of model.c: which pieces of code, and with what numbers.

Samples come one at a time. Either their gradients (of a model that adapts by prototypes: the
features of each class) are added up and they are forgotten, so that a further step needs them
again; or their features are kept, up to a number chosen at export, and the device may decide.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from fedmeta.core.decision import FOLDS, candidate_rules
from fedmeta.core.errors import ModelError, SettingError
from fedmeta.core.objective import Adaptation
from fedmeta.core.prototypes import BEHIND
from fedmeta.export.c.plan import Plan
from fedmeta.export.c.writing import array, double, number, piece
from fedmeta.models.losses import Balanced, cross_entropy, squared_error
from fedmeta.models.meta_model import MetaModel

CANDIDATES = ("none", "prototypes", "one", "several")


@dataclass(frozen=True)
class Adapting:
    """How a model adapts in C.

    Args:
        model: the model.
        plan: of its network.
    """

    model: MetaModel
    plan: Plan

    @property
    def rule(self) -> Adaptation:
        """How the model adapts."""
        return self.model.adaptation

    @property
    def classes(self) -> bool:
        """Whether labels are classes, not values."""
        return self.model.task.kind == "classification"

    @property
    def by_means(self) -> bool:
        """Whether the model adapts by class means, not by gradients."""
        return self.rule.by_means

    @property
    def decides(self) -> bool:
        """Whether samples are kept and decide."""
        return self.plan.samples > 0

    @property
    def candidates(self) -> dict[str, Adaptation]:
        """What the samples may choose."""
        head = self.plan.head
        rules = candidate_rules(self.rule)
        if not self.classes or head is None or head.bias is None:
            rules.pop("prototypes", None)
        return rules

    def check(self) -> None:
        """Refuse what cannot be written, and say what can.

        Raises:
            ModelError, SettingError: name it.
        """
        loss, rule, head = self.model.loss, self.rule, self.plan.head
        if loss not in (cross_entropy, squared_error) and not isinstance(loss, Balanced):
            raise ModelError(
                f"the loss {getattr(loss, '__name__', type(loss).__name__)!r} cannot be written "
                "in C",
                "train with one of the built-in losses, or export to ONNX",
            )
        if self.by_means and (head is None or head.bias is None):
            raise ModelError(
                "class means need a linear last layer with a bias that alone adapts",
                "end the network with one nn.Linear",
            )
        if not self.decides:
            return
        if head is None:
            raise SettingError(
                "a device decides by a linear last layer that alone adapts, but other layers "
                "adapt or follow it",
                "leave out --decide, or train with --inner-scope head",
            )
        if rule.learned == "parameter" or rule.batch_size is not None:
            what = "a step size for every number" if rule.batch_size is None else "mini-batches"
            raise SettingError(
                f"this model adapts with {what}, and a device that decides does not",
                "leave out --decide, or train it without",
            )

    @property
    def declarations(self) -> str:
        """Numbers that the code below refers to by name."""
        head, rule = self.plan.head, self.rule
        names: list[tuple[str, str]] = []
        if head is not None and (self.decides or self.by_means):
            bias = self.plan.offset(head.bias)
            names += [("FEATURES", str(self.plan.features))]
            names += [("WEIGHT", str(self.plan.offset(head.weight))), ("BIAS", str(bias or 0))]
        if self.decides:
            names += [("FOLDS", str(FOLDS))]
            if not self.by_means:
                names += [("HAS_BIAS", str(int(head is not None and head.bias is not None)))]
                names += [("SEVERAL", str(self.candidates["several"].steps))]
            names += [("TRAINED_FOR", f"FM_{self._trained_for.upper()}")]
            places = [CANDIDATES.index(name) for name in self.candidates]
            names += [("CANDIDATES", " | ".join(f"1 << {place}" for place in places))]
        text = "".join(f"    {name} = {value},\n" for name, value in names)
        text = f"enum {{\n{text}}};\n" if names else ""
        if not self.by_means:
            text += f"#define PULL {number(rule.pull)} /* back to the meta-model */\n"
        if self.decides and not self.by_means and head is not None:
            for name, tensor in (("WEIGHT", head.weight), ("BIAS", head.bias)):
                size = rule.step_size * self._factor(tensor)
                text += f"#define {name}_STEP {double(size)}\n"
        if self.by_means or (self.decides and "prototypes" in self.candidates):
            sharpness = self.candidates["prototypes"].step_size
            text += f"#define SHARPNESS {double(sharpness)}\n#define BEHIND {double(BEHIND)}\n"
        if isinstance(self.model.loss, Balanced):
            text += "\n" + array(
                "float", "class_weight", np.array(self.model.loss.weights), "of the loss"
            )
        return text

    def _factor(self, tensor: str | None) -> float:
        factors = self.rule.factors
        return 1.0 if factors is None or tensor is None else float(factors[tensor])

    @property
    def _trained_for(self) -> str:
        if self.rule.steps == 0:
            return "none"
        return "prototypes" if self.by_means else "one" if self.rule.steps == 1 else "several"

    @property
    def step_sizes(self) -> str:
        """`step_size(i)`: of every number that moves."""
        rule = self.rule
        if rule.factors is None:
            body = f"    (void)i;\n    return {number(rule.step_size)};"
            return _step_function(body)
        if rule.learned == "parameter" or any(each.ndim for each in rule.factors.values()):
            flat = [
                (rule.step_size * rule.factors[part.name].expand(self.model.theta[part.name].shape))
                for part in self.plan.parts
            ]
            whole = np.concatenate([each.numpy().ravel() for each in flat])
            learned = array("float", "learned_steps", whole, "one for every number that moves")
            return f"{learned}\n\n{_step_function('    return learned_steps[i];')}"
        lines = [
            f"    if (i < {part.offset + part.count}) {{\n"
            f"        return {number(rule.step_size * self._factor(part.name))};\n    }}"
            for part in self.plan.parts[:-1]
        ]
        last = number(rule.step_size * self._factor(self.plan.parts[-1].name))
        return _step_function("\n".join([*lines, f"    return {last};"]))

    @property
    def code(self) -> list[str]:
        """The pieces, in order."""
        real, power = ("double", "exp") if self.decides else ("float", "expf")
        kind = "classes" if self.classes else "values"
        weighted = isinstance(self.model.loss, Balanced)
        words = {
            "REAL": real,
            "EXP": f"{power}({{0}})",
            "LABEL": "int" if self.classes else "const float *",
            "TARGET": "{0}" if self.classes else "target",
            "SCALED_LABEL": "scaled_label({0}, {1})" if self.model.scaling.labels else "{1}",
            "CLASS_WEIGHT": "class_weight[{0}]" if weighted else "1",
            "KEEP_LABEL": "labels[{0}] = {1}"
            if self.classes
            else "memcpy(labels[{0}], target, sizeof target)",
            "SAME_CLASS": "labels[{0}] == labels[{1}]" if self.classes else "1",
            "HAS_CLASSES": "1" if self.classes else "0",
            "IS_CANDIDATE": "(CANDIDATES >> {0} & 1)",
            "KEPT": "meta[{0}]" if self.rule.keeps_head else "0.0",
            "KEPT_ANSWER": "meta_answers[{0}][{1}]" if self.rule.keeps_head else "0.0",
        }
        slope, value = f"loss_{kind}", f"loss_{kind}_value"
        sample = "sample_class" if self.classes else "sample_values"
        if not self.decides:
            names = [sample, "stream_means", "prototypes", "stream_means_step"]
            if not self.by_means:
                names = [slope, sample, "stream", "STEPS", "stream_step"]
        else:
            means = "prototypes" in self.candidates
            names = [sample, "keep", *(["keep_means", "prototypes"] if means else [])]
            names += ["keep_answers"]
            if self.by_means:
                names += ["keep_means_step"]
            else:
                names += [slope, "keep_step", "keep_gradient_step", "several_steps"]
            names += [value, *(["decide_means"] if means else [])]
            names += ["named_right"] if self.classes else []
            names += ["decide"]
            words |= self._candidate_words()
        return [self.step_sizes if name == "STEPS" else piece(name, **words) for name in names]

    def _candidate_words(self) -> dict[str, str]:
        """How the code of the decision calls what this model can choose."""
        means = "prototypes" in self.candidates
        steps = "several_steps(part, candidate == FM_NONE ? 0 : candidate == FM_ONE ? 1 : SEVERAL);"
        if self.by_means:
            steps = "memcpy(answers, meta_answers, sizeof answers);"
        answers = f"    {steps}"
        if means:
            answers = (
                "    if (candidate == FM_PROTOTYPES) {\n        means_without(part);\n"
                f"    }} else {{\n        {steps}\n    }}"
            )
        apply = "" if self.by_means else (
            " else {\n        answers_of(choice, -1);\n        status = move_head(meta);\n    }"
        )  # fmt: skip
        if means:
            apply = (
                " else if (choice == FM_PROTOTYPES) {\n        status = prototype_head();\n    }"
                + apply
            )
        return {
            "ANSWERS_OF_CANDIDATE": answers,
            "ELSE_ADAPT": apply,
            "NAMED_RIGHT": "named_right({0})" if self.classes else "0",
        }

    def memory(self) -> list[tuple[str, str, int, str]]:
        """Declarations of buffers: kind and name, extent, bytes, what it is for."""
        plan, out = self.plan, self.plan.outputs
        count = plan.parameters
        found = [("float", "theta[FM_PARAMETERS]", 4 * count, "parameters that adaptation moves")]
        if not self.classes:
            found.append(("float", "target[FM_OUTPUTS]", 4 * out, "a scaled label"))
        if not self.decides:
            found.append(("float", "sums[FM_PARAMETERS]", 4 * count, "over the samples added"))
            if not self.by_means:
                found.append(
                    ("float", "answer_slope[FM_OUTPUTS]", 4 * out, "of the loss by the answer")
                )
            return found
        n, table = plan.samples, "[FM_SAMPLES][FM_OUTPUTS]"
        labels = ("int", "labels[FM_SAMPLES]", 4 * n, "of the samples kept")
        if not self.classes:
            labels = ("float", f"labels{table}", 4 * n * out, "of the samples kept")
        found += [
            ("float", "kept[FM_SAMPLES][FEATURES]", 4 * n * plan.features, "features of samples"),
            labels,
            ("double", "products[FM_SAMPLES][FM_SAMPLES]", 8 * n * n, "of features"),
            ("double", f"meta_answers{table}", 8 * n * out, "answers of the meta-model"),
            ("double", f"answers{table}", 8 * n * out, "answers of a candidate"),
            ("double", "left_out[FM_CANDIDATES][FM_SAMPLES]", 32 * n, "losses"),
        ]
        if not self.by_means:
            found += [
                ("double", f"push{table}", 8 * n * out, "what samples move weights by"),
                ("double", "shift[FM_OUTPUTS]", 8 * out, "what they move the bias by"),
            ]
        return found


def _step_function(body: str) -> str:
    about = "/* The step size of a parameter that moves. */"
    return f"{about}\nstatic float step_size(int i)\n{{\n{body}\n}}\n"


def adapting(model: MetaModel, plan: Plan) -> Adapting:
    """How a model adapts in C, after a check that it can."""
    found = Adapting(replace(model), plan)
    found.check()
    return found
