"""Plans as text."""

from cpgd_jax.plan.chips import GIB


def details(plan: dict) -> str:
    """A slice: a line a program, then the verdict."""
    mesh = " x ".join(f"{name} {size}" for name, size in plan["mesh"].items())
    lines = [
        f"{plan['topology']}: {plan['chips']} chips, {mesh}",
        f"  {'':10}{'arguments':>10}{'temporary':>10}{'peak GiB':>10}{'TFLOP':>9}{'HBM GB':>9}"
        f"{'links GB':>9}{'seconds':>9}{'MFU':>6}{'tokens/s':>11}",
    ]
    for name, row in plan["programs"].items():
        if "too_large" in row:
            lines.append(f"  {name:10}{'':20}{row['bytes_peak'] / GIB:10.2f}  is too large")
            continue
        sizes = (row["bytes_arguments"], row["bytes_temporaries"], row["bytes_peak"])
        lines.append(
            f"  {name:10}"
            + "".join(f"{x / GIB:10.2f}" for x in sizes)
            + f"{row['flops'] / 1e12:9.2f}{row['hbm_bytes'] / 1e9:9.1f}"
            + f"{_travels(row) / 1e9:9.2f}{row['seconds']:9.4f}{row['mfu']:6.0%}"
            + f"{row['tokens_per_s']:11,.0f}"
        )
    for name, row in plan["programs"].items():
        if name == "train_step" and row.get("collective_bytes"):
            parts = sorted(row["collective_bytes"].items(), key=lambda x: -x[1])[:4]
            parts = ", ".join(f"{kind} {count / 1e9:.2f}" for kind, count in parts)
            lines.append(f"  links of the train step, GB a chip: {parts}")
            lines.append(f"  its MFU if nothing of that is hidden: {row['mfu_nothing_hidden']:.0%}")
    return "\n".join([*lines, "  " + verdict(plan)])


def verdict(plan: dict) -> str:
    if plan["fits"]:
        return f"fits, {plan['headroom']:.0%} of the memory left"
    text = f"does not fit: {-plan['headroom']:.0%} too much"
    changes = plan.get("changes", [])
    if not changes:
        return text + ("" if "changes" not in plan else "; no single change would help")
    options = [f"{x['change']} ({x['headroom']:.0%} left, MFU {x['mfu']:.0%})" for x in changes]
    return f"{text}; the train step would with {' or '.join(options)}"


def summary(plans: list[dict]) -> str:
    """A line a slice, of the train step."""
    lines = [
        f"{'slice':16}{'chips':>6}{'fits':>6}{'left':>6}{'s/step':>9}{'MFU':>6}{'links GB':>10}"
    ]
    for plan in plans:
        row = plan["programs"].get("train_step", {})
        fits = "yes" if plan["fits"] else "no"
        line = f"{plan['topology']:16}{plan['chips']:6}{fits:>6}{plan['headroom']:6.0%}"
        if "seconds" in row:
            line += f"{row['seconds']:9.3f}{row['mfu']:6.0%}{_travels(row) / 1e9:10.2f}"
        lines.append(line)
    return "\n".join(lines)


def _travels(row: dict) -> float:
    return sum(row["collective_bytes"].values())
