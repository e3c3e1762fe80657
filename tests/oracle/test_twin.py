"""The twin against arithmetic done by hand, against autograd, and against section 2's identities.

The hand cases: two nodes, scalar ridge regression, loss ½(θx − y)² + ½θ² per sample, α = 1/4.
Every number is dyadic unless said otherwise, so the comparisons are almost exact.

Node A, one support sample (x, y) = (1, 2), one query sample (2, 1):
    ∇L(θ, Dˢ) = (θ − 2) + θ = 2θ − 2,   H = 2,   ∇L(φ, D^q) = 2(2φ − 1) + φ = 5φ − 2
    φ = θ − (2θ − 2)/4 = θ/2 + 1/2,   r = 5θ/2 + 1/2,   G_A = (1 − 2/4) r = 5θ/4 + 1/4
Node B, support (1, −1), (1, 1), query (1, 3), (1, 1), (1, 3), (1, 1):
    ∇L(θ, Dˢ) = 2θ,   H = 2,   ∇L(φ, D^q) = (φ − 2) + φ = 2φ − 2
    φ = θ/2,   r = θ − 2,   G_B = θ/2 − 1
D = 2, 6, so w = 1/4, 3/4 and Σ w_i G_i = (5θ + 1)/16 + (6θ − 12)/16 = 11(θ − 1)/16: θ* = 1.
Penalties ρ = 1, 3, so Σρ = 4.
"""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from . import twin
from .twin import G, OracleNode, admm_fedmeta, fedavg, fedmeta, node_round, per_fedavg, reptile


def vec(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def ridge_f(theta: Tensor, x: Tensor) -> Tensor:
    return torch.stack([theta[0] * x, theta[0].expand(len(x))], dim=1)


def ridge_loss(outputs: Tensor, y: Tensor) -> Tensor:
    return 0.5 * (outputs[:, 0] - y) ** 2 + 0.5 * outputs[:, 1] ** 2


A = OracleNode(vec(1), vec(2), vec(2), vec(1))
B = OracleNode(vec(1, 1), vec(-1, 1), vec(1, 1, 1, 1), vec(3, 1, 3, 1))
NODES = [A, B]
ALPHA = 0.25
RHO = [1.0, 3.0]
ZERO = vec(0)


def near(x: float) -> Any:
    return pytest.approx(x, rel=1e-13, abs=1e-14)


def ridge_admm(rounds: int, **options: Any) -> twin.History:
    settings = {"alpha": ALPHA, "rho": RHO, **options}
    theta0 = settings.pop("theta0", ZERO)
    return admm_fedmeta(theta0, NODES, ridge_f, ridge_loss, rounds=rounds, **settings)


# A small smooth classifier: 3 inputs, 4 tanh units, 3 classes; 3·4 + 4 + 4·3 + 3 = 31 parameters.
SIZE = 31


def mlp_f(theta: Tensor, x: Tensor) -> Tensor:
    W1, b1, W2, b2 = theta[:12], theta[12:16], theta[16:28], theta[28:]
    return torch.tanh(x @ W1.reshape(3, 4) + b1) @ W2.reshape(4, 3) + b2


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    return -torch.log_softmax(outputs, dim=1)[torch.arange(len(y)), y]


def mlp_case() -> tuple[Tensor, list[OracleNode]]:
    rng = torch.Generator().manual_seed(7)

    def draw(n: int) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, 3, generator=rng, dtype=torch.float64)
        return x, torch.randint(3, (n,), generator=rng)

    theta = 0.7 * torch.randn(SIZE, generator=rng, dtype=torch.float64)
    return theta, [OracleNode(*draw(s), *draw(q)) for s, q in [(3, 4), (5, 2), (4, 6)]]


HEAD = torch.cat([torch.zeros(16), torch.ones(15)]).to(torch.float64)


# --- Independence --------------------------------------------------------------------------------


def test_twin_imports_only_torch_and_the_standard_library() -> None:
    tree = ast.parse(Path(twin.__file__).read_text(encoding="utf-8"))
    names: set[str] = set()
    for item in ast.walk(tree):
        if isinstance(item, ast.Import):
            names |= {alias.name.split(".")[0] for alias in item.names}
        elif isinstance(item, ast.ImportFrom):
            assert item.level == 0
            names.add(str(item.module).split(".")[0])
    assert names <= {"torch", "numpy"} | sys.stdlib_module_names


# --- The meta-gradient ---------------------------------------------------------------------------


@pytest.mark.parametrize("curvature", ["exact", "finite-difference"])
def test_meta_gradient_by_hand(curvature: twin.Curvature) -> None:
    # θ = 0: G_A = 1/4, G_B = −1. θ = 2: G_A = 11/4, G_B = 0. (L is quadratic: no difference error.)
    for theta, by_hand in [(0.0, (0.25, -1.0)), (2.0, (2.75, 0.0))]:
        for node, expected in zip(NODES, by_hand, strict=True):
            got = G(vec(theta), node, ridge_f, ridge_loss, alpha=ALPHA, curvature=curvature)
            assert got.item() == pytest.approx(expected, abs=1e-12)


def test_first_order_by_hand() -> None:
    # r alone: A 5·0/2 + 1/2 = 1/2, B 0 − 2 = −2.
    got = [G(ZERO, n, ridge_f, ridge_loss, alpha=ALPHA, curvature="none").item() for n in NODES]
    assert got == [0.5, -2.0]


def test_three_steps_by_hand() -> None:
    # A from 0: φ = 1/2, 3/4, 7/8; r = 35/8 − 2 = 19/8; every J = 1/2; G = 19/64.
    for curvature in ("exact", "finite-difference"):
        got = G(ZERO, A, ridge_f, ridge_loss, alpha=ALPHA, curvature=curvature, steps=3)
        assert got.item() == pytest.approx(19 / 64, abs=1e-12)


@pytest.mark.parametrize("curvature", ["exact", "finite-difference"])
def test_masked_meta_gradient_by_hand(curvature: twin.Curvature) -> None:
    # ½(x·θ − y)², θ = 0, α = 1/2, m = (0, 1). Support x = (1, 1), y = 2: ∇L = (−2, −2), H = all 1.
    # φ = (0, 1). Query x = (1, 2), y = 1: r = (2 − 1)(1, 2) = (1, 2).
    # Jᵀr = r − α H (m∘r) = (1, 2) − ½ H (0, 2) = (1, 2) − (1, 1) = (0, 1).
    # (The mask on the wrong side, r − α m∘Hr, would give (1, 1/2).)
    node = OracleNode(vec(1, 1)[None], vec(2), vec(1, 2)[None], vec(1))
    got = G(
        vec(0, 0),
        node,
        lambda theta, x: x @ theta,
        lambda outputs, y: 0.5 * (outputs - y) ** 2,
        alpha=0.5,
        curvature=curvature,
        mask=vec(0, 1),
    )
    torch.testing.assert_close(got, vec(0, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mask", [None, HEAD], ids=["all", "head"])
@pytest.mark.parametrize("steps", [1, 3])
def test_meta_gradient_is_autograd_through_the_unrolled_adaptation(
    steps: int, mask: Tensor | None
) -> None:
    theta, nodes = mlp_case()
    m = torch.ones(SIZE, dtype=torch.float64) if mask is None else mask
    for node in nodes:
        start = theta.clone().requires_grad_()
        phi = start
        for _ in range(steps):
            support = cross_entropy(mlp_f(phi, node.xs), node.ys).mean()
            phi = phi - 0.3 * m * torch.autograd.grad(support, phi, create_graph=True)[0]
        query = cross_entropy(mlp_f(phi, node.xq), node.yq).mean()
        (expected,) = torch.autograd.grad(query, start)

        options: dict[str, Any] = {"alpha": 0.3, "steps": steps, "mask": mask}
        exact = G(theta, node, mlp_f, cross_entropy, curvature="exact", **options)
        torch.testing.assert_close(exact, expected, rtol=1e-11, atol=1e-13)
        first = G(theta, node, mlp_f, cross_entropy, curvature="none", **options)
        assert torch.linalg.vector_norm(first - expected) > 1e-2  # curvature matters here

        # Central differences: the error falls with δ².
        error = [
            torch.linalg.vector_norm(
                G(
                    theta,
                    node,
                    mlp_f,
                    cross_entropy,
                    curvature="finite-difference",
                    delta=delta,
                    **options,
                )
                - expected
            ).item()
            for delta in (2e-2, 1e-2)
        ]
        assert error[0] / error[1] == pytest.approx(4, rel=0.05)
        assert error[1] < 1e-3


# --- ADMM-FedMeta by hand ------------------------------------------------------------------------


def test_two_rounds_by_hand() -> None:
    # Round 1, θ¹ = 0, y⁰ = 0. A: wG = 1/16, θ_A = −1/16, y_A = −1/16.
    #   B: wG = −3/4, θ_B = (3/4)/3 = 1/4, y_B = 3·1/4 = 3/4.
    #   θ² = [(−1/16 − 1/16) + (3/4 + 3·1/4)]/4 = (11/8)/4 = 11/32.
    #   meta-loss: A φ = 1/2, ½·0² + ½·1/4 = 1/8; B φ = 0, ½(9+1+9+1)/4 = 5/2;
    #   1/32 + 15/8 = 61/32.  primal² = 1/256 + 1/16 = 17/256.  Σv = 11/8.  Σy = 11/16.
    # Round 2, θ² = 11/32. G_A = 55/128 + 32/128 = 87/128, y_A = −87/512.
    #   G_B = 11/64 − 1 = −53/64, y_B = 159/256.
    #   Σv = 2·(318 − 87)/512 − 11/16 = 110/512;  θ³ = 11/32 + 110/2048 = 407/1024.
    h = ridge_admm(2)
    assert [theta.item() for theta in h.theta] == [near(11 / 32), near(407 / 1024)]
    assert [y.item() for y in h.y[0]] == [near(-1 / 16), near(3 / 4)]
    assert [y.item() for y in h.y[1]] == [near(-87 / 512), near(159 / 256)]
    assert h.meta_loss[0] == near(61 / 32)
    assert h.primal[0] == near(17**0.5 / 16)
    # Round 2: ‖θ_i − θ²‖ = |y_i² − y_i¹|/ρ_i: A (87 − 32)/512, B (192 − 159)/256/3 = 11/256.
    assert h.primal[1] == near(((55 / 512) ** 2 + (11 / 256) ** 2) ** 0.5)
    assert h.dual == [near(11 / 8), near(110 / 512)]
    assert h.grad_norm == [near(11 / 16), near(231 / 512)]


def test_regulariser_by_hand() -> None:
    # λ = 1/2, θ_p = 2, θ¹ = 0: λ∇D_h = ½·2·(0 − 2) = −2. Uploads as before, U = 11/8.
    # linearised: (11/8 + 2)/4 = 27/32.  proximal: (11/8 + 2·½·2)/(1 + 4) = 27/40.
    # dual residual |−2 − 11/8| = 27/8 = Σρ·27/32; gradient |−11/16 − 2| = 43/16.
    linearised = ridge_admm(1, lam=0.5, theta_p=vec(2))
    proximal = ridge_admm(1, lam=0.5, theta_p=vec(2), platform="proximal")
    assert linearised.theta[0].item() == near(27 / 32)
    assert proximal.theta[0].item() == near(27 / 40)
    for h in (linearised, proximal):
        assert h.dual[0] == near(27 / 8)
        assert h.grad_norm[0] == near(43 / 16)
        assert h.meta_loss[0] == near(61 / 32)  # without the regulariser
    # Mahalanobis with A = 3: ∇D_h = 2·3·(0 − 2) = −12, (11/8 + 6)/4 = 59/32.
    h = ridge_admm(1, lam=0.5, theta_p=vec(2), grad_D_h=lambda theta, p: 2 * vec(3) * (theta - p))
    assert h.theta[0].item() == near(59 / 32)


def test_regularised_fixed_point_by_hand() -> None:
    # ∇F = 11(θ − 1)/16 + 2·½·(θ − 2) = 0: θ = (11 + 32)/27 = 43/27, either platform step.
    for platform in ("linearised", "proximal"):
        h = ridge_admm(120, lam=0.5, theta_p=vec(2), platform=platform)
        assert h.theta[-1].item() == pytest.approx(43 / 27, abs=1e-12)
        assert max(h.primal[-1], h.dual[-1], h.grad_norm[-1]) < 1e-11


def test_two_local_steps_by_hand() -> None:
    # A, ρ = 1, η = 1/2, y = 0, θ = 0: θ_A¹ = −½·1/16 = −1/32; G_A(−1/32) = (−5 + 32)/128 = 27/128;
    # θ_A² = −1/32 − ½[27/512 − 1/32] = −32/1024 − 11/1024 = −43/1024; y_A = −43/1024.
    theta_i, y_i = node_round(
        ZERO, ZERO, A, ridge_f, ridge_loss, w_i=0.25, rho_i=1, alpha=ALPHA, K=2, eta_i=0.5
    )
    assert (theta_i.item(), y_i.item()) == (near(-43 / 1024), near(-43 / 1024))
    # Default η = 1/ρ: θ_A¹ = −1/16; G_A(−1/16) = (−5 + 16)/64 = 11/64;
    # θ_A² = −1/16 − [11/256 − 1/16] = −11/256: the old point cancels.
    theta_i, _ = node_round(ZERO, ZERO, A, ridge_f, ridge_loss, w_i=0.25, rho_i=1, alpha=ALPHA, K=2)
    assert theta_i.item() == near(-11 / 256)
    # η per node, through the whole round: B, ρ = 3, η = 1/6, y = 0: θ_B¹ = (1/6)(3/4) = 1/8;
    # G_B(1/8) = −15/16; θ_B² = 1/8 − (1/6)[−45/64 + 24/64] = 1/8 + 7/128 = 23/128; y_B = 69/128.
    # θ² = [2·(−43/1024) + 69/128 + 3·23/128]/4 = (−43/512 + 552/512)/4 = 509/2048.
    h = ridge_admm(1, K=2, eta=[1 / 2, 1 / 6])
    assert h.theta[0].item() == near(509 / 2048)


def test_many_local_steps_solve_the_local_problem() -> None:
    # A, ρ = 1, y = 1/2, θ = 1: ¼(5x/4 + 1/4) + 1/2 + (x − 1) = 0 → 21x/16 = 7/16 → x = 1/3.
    theta_i, y_i = node_round(
        vec(1), vec(0.5), A, ridge_f, ridge_loss, w_i=0.25, rho_i=1, alpha=ALPHA, K=60
    )
    assert theta_i.item() == pytest.approx(1 / 3, abs=1e-13)
    assert y_i.item() == pytest.approx(0.5 - 2 / 3, abs=1e-13)


def test_fixed_point_does_not_depend_on_k_or_eta() -> None:
    # θ* = 1; y* = −w G: A −¼·3/2 = −3/8, B −¾·(−1/2) = 3/8.
    scaled: dict[str, Any] = {"rho": [0.25 * 2, 0.75 * 2], "eta": [0.4 / 0.25, 0.4 / 0.75]}
    for options in ({}, {"K": 3}, {"K": 3, **scaled}):
        h = ridge_admm(250, **options)
        assert h.theta[-1].item() == pytest.approx(1, abs=1e-11)
        assert [y.item() for y in h.y[-1]] == pytest.approx([-3 / 8, 3 / 8], abs=1e-11)


# --- Participation by hand -----------------------------------------------------------------------


def test_participants_rule_by_hand() -> None:
    # t=1, S={A}: v = −1/8, θ² = 0 − (1/8)/1 = −1/8.
    # t=2, S={B}: G_B = −1/16 − 1 = −17/16, y_B = 51/64, v = 51/32, θ³ = −1/8 + (51/32)/3 = 13/32.
    # t=3, S={A}, y_A = −1/16 of round 1: G_A = 65/128 + 32/128 = 97/128, y_A = −97/512,
    #      v = −97/256 + 16/256 = −81/256, θ⁴ = 104/256 − 81/256 = 23/256.
    # t=4, S={}: θ⁵ = θ⁴.
    h = ridge_admm(4, participation=[[0], [1], [0], []])
    assert [theta.item() for theta in h.theta] == [near(x) for x in (-1 / 8, 13 / 32, 23 / 256)] + [
        h.theta[2].item()
    ]
    assert [y.item() for y in h.y[1]] == [near(-1 / 16), near(51 / 64)]
    assert [y.item() for y in h.y[3]] == [near(-97 / 512), near(51 / 64)]
    assert h.primal[3] == 0
    assert h.dual == [near(1 / 8), near(51 / 32), near(81 / 256), 0]
    assert h.grad_norm[1] == near(51 / 64 - 1 / 16)  # over all nodes
    assert h.meta_loss[0] == near(61 / 32)  # over all nodes


def test_participants_rule_with_regulariser_by_hand() -> None:
    # λ = 1/2, θ_p = 2, so λ∇D_h(0) = −2 and Σ_all ρ = 4.
    # S={A}: θ̂ = −1/8; linearised −1/8 + 2/4 = 3/8; proximal (4·(−1/8) + 2)/(4 + 1) = 3/10.
    # S={}: θ̂ = 0; linearised 0 + 2/4 = 1/2; proximal (0 + 2)/5 = 2/5.
    for S, platform, expected in [
        ([0], "linearised", 3 / 8),
        ([0], "proximal", 3 / 10),
        ([], "linearised", 1 / 2),
        ([], "proximal", 2 / 5),
    ]:
        h = ridge_admm(1, lam=0.5, theta_p=vec(2), platform=platform, participation=[S])
        assert h.theta[0].item() == near(expected)


def test_stale_rule_by_hand() -> None:
    # u⁰ = (0, 0). t=1, S={A}: u_A = −1/8, U = −1/8, θ² = −1/32.
    # t=2, S={B}: G_B = −1/64 − 1 = −65/64, y_B = 195/256, v = 195/128,
    #      u_B = 3·(−1/32) + 195/128 = 183/128, U = 167/128, θ³ = 167/512.
    # t=3, S={}: U stays, θ⁴ = 167/512.
    h = ridge_admm(3, participation=[[0], [1], []], rule="stale")
    expected = [near(-1 / 32), near(167 / 512), near(167 / 512)]
    assert [theta.item() for theta in h.theta] == expected


def test_stale_rule_starts_from_y0_and_theta0_by_hand() -> None:
    # θ⁰ = 1, y⁰ = (1/2, 3/2): U = (1/2 + 1) + (3/2 + 3) = 6. S={}: θ² = 6/4 = 3/2.
    # With λ = 1/2, θ_p = 2: λ∇D_h(1) = −1; linearised 7/4; proximal (6 + 2)/5 = 8/5.
    options: dict[str, Any] = {
        "theta0": vec(1),
        "y0": [vec(0.5), vec(1.5)],
        "participation": [[]],
        "rule": "stale",
    }
    assert ridge_admm(1, **options).theta[0].item() == near(3 / 2)
    options |= {"lam": 0.5, "theta_p": vec(2)}
    assert ridge_admm(1, **options).theta[0].item() == near(7 / 4)
    assert ridge_admm(1, platform="proximal", **options).theta[0].item() == near(8 / 5)


# --- Identities of section 2, on the classifier --------------------------------------------------


def mlp_admm(rounds: int, **options: Any) -> tuple[Tensor, list[OracleNode], twin.History]:
    theta0, nodes = mlp_case()
    settings: dict[str, Any] = {"alpha": 0.1, "rho": [0.5, 0.8, 1.1], **options}
    return (
        theta0,
        nodes,
        admm_fedmeta(theta0, nodes, mlp_f, cross_entropy, rounds=rounds, **settings),
    )


@pytest.mark.parametrize("curvature", ["exact", "finite-difference", "none"])
def test_dual_is_the_negative_weighted_meta_gradient(curvature: twin.Curvature) -> None:
    theta0, nodes, h = mlp_admm(3, curvature=curvature)
    thetas = [theta0, *h.theta]
    w = [7 / 24, 7 / 24, 10 / 24]
    for t in (1, 2, 3):
        for i, node in enumerate(nodes):
            g = G(
                thetas[t - 1],
                node,
                mlp_f,
                cross_entropy,
                alpha=0.1,
                curvature=curvature,
                delta=1 / (10 * t + 100),
            )
            torch.testing.assert_close(h.y[t - 1][i], -w[i] * g, rtol=1e-10, atol=1e-13)


def test_one_vector_form() -> None:
    theta_p = torch.linspace(-1, 1, SIZE, dtype=torch.float64)
    y0 = [0.01 * torch.cos(torch.arange(SIZE, dtype=torch.float64) + i) for i in range(3)]
    for platform in ("linearised", "proximal"):
        theta0, _, h = mlp_admm(3, lam=0.2, theta_p=theta_p, y0=y0, platform=platform)
        thetas, ys, sum_rho = [theta0, *h.theta], [y0, *h.y], 0.5 + 0.8 + 1.1
        for t in (1, 2, 3):
            theta = thetas[t - 1]
            v = sum((2 * ys[t][i] - ys[t - 1][i] for i in range(3)), torch.zeros_like(theta))
            lam_grad = 0.2 * 2 * (theta - theta_p)
            if platform == "linearised":
                expected = theta + (v - lam_grad) / sum_rho
                dual = sum_rho * float(torch.linalg.vector_norm(thetas[t] - theta))
                assert h.dual[t - 1] == pytest.approx(dual, rel=1e-11)
            else:
                expected = (sum_rho * theta + v + 2 * 0.2 * theta_p) / (sum_rho + 2 * 0.2)
            torch.testing.assert_close(thetas[t], expected, rtol=1e-12, atol=1e-13)
            # Σyᵗ = (Σv + Σy^{t−1})/2
            total = v + sum(ys[t - 1], torch.zeros_like(v))
            assert h.grad_norm[t - 1] == pytest.approx(
                float(torch.linalg.vector_norm(lam_grad - total / 2)), rel=1e-11
            )


def test_first_step_is_twice_a_meta_gradient_step() -> None:
    theta0, nodes, h = mlp_admm(1)
    (step,) = fedmeta(theta0, nodes, mlp_f, cross_entropy, alpha=0.1, beta=2 / 2.4, rounds=1)
    torch.testing.assert_close(h.theta[0], step, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("platform", ["linearised", "proximal"])
@pytest.mark.parametrize("K", [1, 3])
def test_both_rules_agree_when_everyone_takes_part(platform: twin.Platform, K: int) -> None:
    options: dict[str, Any] = {
        "lam": 0.3,
        "theta_p": torch.ones(SIZE, dtype=torch.float64),
        "platform": platform,
        "K": K,
    }
    reference = mlp_admm(2, **options)[2]
    for rule in ("participants", "stale"):
        h = mlp_admm(2, **options, rule=rule, participation=[[2, 0, 1], [0, 1, 2]])[2]
        torch.testing.assert_close(h.theta[-1], reference.theta[-1], rtol=1e-13, atol=1e-14)


def test_participants_rule_in_the_limit_of_an_absent_node() -> None:
    # Without a regulariser, two counted nodes of three are a federation of those two
    # (with the weights of the three).
    theta0, nodes, h = mlp_admm(2, participation=[[0, 2], [0, 2]])
    w = twin.node_weights(nodes)
    alone = admm_fedmeta(
        theta0,
        [nodes[0], nodes[2]],
        mlp_f,
        cross_entropy,
        alpha=0.1,
        rho=[0.5, 1.1],
        rounds=2,
        weights=[w[0], w[2]],
    )
    torch.testing.assert_close(h.theta[-1], alone.theta[-1], rtol=1e-13, atol=1e-14)


# --- Baselines by hand ---------------------------------------------------------------------------


def test_fedavg_and_reptile_by_hand() -> None:
    # All data, step 1/4, E = 2. A: ∇ = ½[(2θ − 2) + (5θ − 2)] = 7θ/2 − 2:
    #   0 → 1/2 → 1/2 − ¼(7/4 − 2) = 9/16.
    # B: ∇ = [2·2θ + 4(2θ − 2)]/6 = 2θ − 4/3: 0 → 1/3 → 1/3 − ¼(2/3 − 4/3) = 1/2.
    # Average ¼·9/16 + ¾·1/2 = 33/64. Reptile with ε = 1/2: 33/128. Only B: 1/2 and 1/4.
    common: dict[str, Any] = {"step_size": 0.25, "local_steps": 2}
    cases: list[tuple[list[list[int]] | None, float]] = [
        (None, 33 / 64),
        ([[0, 1]], 33 / 64),
        ([[1]], 1 / 2),
        ([[]], 0),
    ]
    for S, average in cases:
        (got,) = fedavg(ZERO, NODES, ridge_f, ridge_loss, rounds=1, participation=S, **common)
        assert got.item() == near(average)
        (got,) = reptile(
            ZERO, NODES, ridge_f, ridge_loss, rounds=1, epsilon=0.5, participation=S, **common
        )
        assert got.item() == near(average / 2)


def test_per_fedavg_by_hand() -> None:
    # β = 1/2, E = 2. A: 0 → −1/8 → −1/8 − ½(−5/32 + 8/32) = −11/64.
    # B: 0 → 1/2 → 1/2 − ½(1/4 − 1) = 7/8. Average −11/256 + 21/32 = 157/256.
    # First order, r: A 0 → −1/4 → −1/4 − ½(−5/8 + 1/2) = −3/16; B 0 → 1 → 1 − ½(1 − 2) = 3/2;
    # average −3/64 + 9/8 = 69/64.
    common: dict[str, Any] = {"alpha": ALPHA, "beta": 0.5, "local_steps": 2, "rounds": 1}
    cases: list[tuple[twin.Curvature, float]] = [("exact", 157 / 256), ("none", 69 / 64)]
    for curvature, expected in cases:
        (got,) = per_fedavg(ZERO, NODES, ridge_f, ridge_loss, curvature=curvature, **common)
        assert got.item() == near(expected)


def test_fedmeta_by_hand() -> None:
    # Σ w G = 11(θ − 1)/16, β = 1/2: 0 → 11/32 → 11/32 + ½·(11/16)·(21/32) = 583/1024.
    common: dict[str, Any] = {"alpha": ALPHA, "beta": 0.5}
    got = fedmeta(ZERO, NODES, ridge_f, ridge_loss, rounds=2, **common)
    assert [theta.item() for theta in got] == [near(11 / 32), near(583 / 1024)]
    # Only A: 0 − ½·1/4. Nobody: θ stays.
    got = fedmeta(ZERO, NODES, ridge_f, ridge_loss, rounds=2, participation=[[0], []], **common)
    assert [theta.item() for theta in got] == [near(-1 / 8)] * 2
    # Adam's first step is β·g/(|g| + ε), |g| = 11/16.
    (first,) = fedmeta(ZERO, NODES, ridge_f, ridge_loss, rounds=1, optimizer="adam", **common)
    assert first.item() == near(0.5 * (11 / 16) / (11 / 16 + 1e-8))


def test_fedmeta_adam_is_torch_adam() -> None:
    theta0, nodes = mlp_case()
    got = fedmeta(
        theta0, nodes, mlp_f, cross_entropy, alpha=0.1, beta=0.05, rounds=5, optimizer="adam"
    )
    w = twin.node_weights(nodes)
    theta = theta0.clone().requires_grad_()
    adam = torch.optim.Adam([theta], lr=0.05)
    for t in range(5):
        theta.grad = sum(
            (
                w[i] * G(theta.detach(), node, mlp_f, cross_entropy, alpha=0.1)
                for i, node in enumerate(nodes)
            ),
            torch.zeros_like(theta0),
        )
        adam.step()
        torch.testing.assert_close(got[t], theta.detach(), rtol=1e-11, atol=1e-12)


# --- Misuse --------------------------------------------------------------------------------------


def test_misuse_is_refused() -> None:
    with pytest.raises(TypeError, match="float64"):
        ridge_admm(1, theta0=torch.zeros(1))
    bad: list[dict[str, Any]] = [
        {"curvature": "diagonal"},
        {"platform": "dual"},
        {"rule": "all"},
        {"rho": [1.0]},
        {"rho": [1.0, 0.0]},
        {"weights": [1.0]},
        {"lam": 1.0},
        {"participation": [[0], [1]]},
        {"participation": [[0, 0]]},
        {"participation": [[2]]},
    ]
    for options in bad:
        with pytest.raises(ValueError):
            ridge_admm(1, **options)
