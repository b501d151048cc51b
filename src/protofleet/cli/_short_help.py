"""The first line of each command's help, so that ``protofleet --help`` imports none of them."""

SHORT_HELP = {
    "bench": "Measure a bundle, kernels, training steps, rounds and memory.",
    "broker": "Set up, run and try an MQTT broker.",
    "bundle": "Look into, verify, trust, quantise and roll out signed bundles.",
    "chaos": "Run federations under faults, and compare them with undisturbed ones.",
    "coordinator": "Run a federation's server.",
    "demo": "Let a fleet of device processes personalise a model.",
    "device": "Take part in a federation, and use what was learned.",
    "docs": "Print the page NAME, or list all pages and where they lie.",
    "doctor": "Examine this machine, and whatever FILES are: what is wrong, and what to do about "
    "it.",
    "experiment": "Run a paper's table again, beside the figures that it prints.",
    "export": "Compile MODEL and write a signed bundle.",
    "fleet": "Rehearse a federation with virtual devices (docs/fleet.md).",
    "hub": "Show runs to their operator, and let browsers take part in a federation.",
    "kernels": "Compiled kernels of this machine.",
    "load": "What a coordinator and Mosquitto bear on this machine.",
    "models": "List the models of export and pretrain, or the settings of the one called NAME.",
    "new": "Write a small project into the folder NAME: yours to change, and it runs as it is.",
    "pretrain": "Train a model centrally.",
    "privacy": "Tell the ε of a noise multiplier, or the noise multiplier of an ε.",
    "rehearse": "Live through the days of the fleet FILE (TOML) in virtual time, and say what it "
    "will cost.",
    "report": "Write report.html into RUN_DIR, or compare it with others.",
    "strategies": "List the strategies, or those of these NAMEs: paper, objectives, what travels.",
}
"""By command; ``tests/test_extras.py`` compares it with the commands' own."""
