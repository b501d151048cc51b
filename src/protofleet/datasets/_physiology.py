"""Thirty features of a short piece of electrocardiogram and skin conductance.

They stand in for the thirty that FedSub computes with NeuroKit2 and does not list: the same kinds
(heart rate and its variability in time and in the Poincaré plot, tonic and phasic skin
conductance), computed here; values will differ from NeuroKit2's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage, signal

FEATURES = (
    "ecg_rate", "nn_mean", "nn_median", "nn_min", "nn_max", "nn_sd", "nn_iqr", "nn_mad", "nn_cv",
    "rmssd", "sdsd", "cvsd", "pnn20", "pnn50", "sd1", "sd2", "sd1_sd2", "ecg_sd", "r_amplitude",
    "eda_mean", "eda_sd", "eda_min", "eda_max", "eda_slope", "tonic_mean", "tonic_sd", "phasic_sd",
    "phasic_max", "scr_count", "scr_amplitude",
)  # fmt: skip
"""Names in order. Intervals between beats (``nn``, ``rmssd``, ``sd1`` …) in ms, ``pnn`` as shares
of successive differences above 20 and 50 ms, ``ecg_rate`` in beats a minute, ``ecg_sd`` and
``r_amplitude`` in mV, conductance in µS, ``eda_slope`` in µS/s."""

_FEWEST_INTERVALS = 3
_INTERVALS_MS = (300.0, 2000.0)  # 200 to 30 beats a minute
_SCR_US = 0.01  # smallest rise that counts as a response


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanSession:
    """One person's cleaned signals.

    Attributes:
        ecg: ``(samples,) float64`` in mV, without drift.
        beats: ``(beats,) int64``: samples of the R peaks.
        eda, tonic, phasic: ``(samples,) float64`` in µS.
        rate_hz: samples a second.
    """

    ecg: NDArray[np.float64]
    beats: NDArray[np.int64]
    eda: NDArray[np.float64]
    tonic: NDArray[np.float64]
    phasic: NDArray[np.float64]
    rate_hz: float


def clean(ecg: NDArray[np.float64], eda: NDArray[np.float64], rate_hz: float) -> CleanSession:
    """Filter a whole session at once, so that windows have no edges of their own."""
    steady = _filter(ecg, 3, (0.5, 40.0), rate_hz)
    smooth = _filter(eda, 4, 3.0, rate_hz)
    tonic = _filter(smooth, 2, 0.05, rate_hz)
    return CleanSession(
        ecg=steady,
        beats=find_beats(steady, rate_hz),
        eda=smooth,
        tonic=tonic,
        phasic=smooth - tonic,
        rate_hz=rate_hz,
    )


def find_beats(ecg: NDArray[np.float64], rate_hz: float) -> NDArray[np.int64]:
    """R peaks: where the slope, averaged over 0.1 s, exceeds twice its average over 2 s.

    The slope is that of 5 to 25 Hz, where the QRS complex stands out of muscle noise.
    """
    steep = np.abs(np.gradient(_filter(ecg, 2, (5.0, 25.0), rate_hz)))
    slope = ndimage.uniform_filter1d(steep, round(0.1 * rate_hz))
    usual = ndimage.uniform_filter1d(slope, round(2.0 * rate_hz))
    found, _ = signal.find_peaks(slope, height=2 * usual, distance=round(0.3 * rate_hz))
    reach = round(0.05 * rate_hz)
    around = np.clip(found[:, np.newaxis] + np.arange(-reach, reach + 1), 0, max(len(ecg) - 1, 0))
    peaks = around[np.arange(len(found)), ecg[around].argmax(axis=1)]
    return np.unique(peaks).astype(np.int64)


def features(session: CleanSession, start: int, stop: int) -> NDArray[np.float64]:
    """The thirty features of samples ``start:stop``; NaN where too few beats were found."""
    beats = session.beats[(session.beats >= start) & (session.beats < stop)]
    ecg = session.ecg[start:stop]
    amplitude = session.ecg[beats].mean() if len(beats) else np.nan
    return np.concatenate(
        [
            _intervals(np.diff(beats) * 1000.0 / session.rate_hz),
            [ecg.std(), amplitude],
            _conductance(session, slice(start, stop)),
        ]
    )


def _intervals(nn: NDArray[np.float64]) -> NDArray[np.float64]:
    nn = nn[(nn >= _INTERVALS_MS[0]) & (nn <= _INTERVALS_MS[1])]
    if len(nn) < _FEWEST_INTERVALS:
        return np.full(17, np.nan)
    steps = np.diff(nn)
    mean, sd = nn.mean(), nn.std(ddof=1)
    sdsd, rmssd = steps.std(ddof=1), np.sqrt((steps**2).mean())
    sd1 = sdsd / np.sqrt(2)
    sd2 = np.sqrt(max(2 * sd**2 - sd1**2, 0.0))
    quarter, median, three_quarters = np.percentile(nn, (25, 50, 75))
    return np.array(
        [
            60_000.0 / mean, mean, median, nn.min(), nn.max(), sd, three_quarters - quarter,
            np.median(np.abs(nn - median)), sd / mean, rmssd, sdsd, rmssd / mean,
            (np.abs(steps) > 20).mean(), (np.abs(steps) > 50).mean(),
            sd1, sd2, sd1 / sd2 if sd2 > 0 else 0.0,
        ]
    )  # fmt: skip


def _conductance(session: CleanSession, part: slice) -> list[float]:
    eda, tonic, phasic = session.eda[part], session.tonic[part], session.phasic[part]
    seconds = np.arange(len(eda)) / session.rate_hz
    seconds -= seconds.mean()
    slope = float(seconds @ eda / (seconds @ seconds))
    _, responses = signal.find_peaks(phasic, prominence=_SCR_US)
    rises = responses["prominences"]
    return [
        eda.mean(), eda.std(), eda.min(), eda.max(), slope, tonic.mean(), tonic.std(),
        phasic.std(), phasic.max(), float(len(rises)), rises.mean() if len(rises) else 0.0,
    ]  # fmt: skip


def _filter(
    values: NDArray[np.float64], order: int, cut_hz: float | tuple[float, float], rate_hz: float
) -> NDArray[np.float64]:
    """Zero-phase Butterworth filter: low-pass, or band-pass between two frequencies."""
    kind = "bandpass" if isinstance(cut_hz, tuple) else "lowpass"
    sections = signal.butter(order, cut_hz, kind, fs=rate_hz, output="sos")
    filtered: NDArray[np.float64] = signal.sosfiltfilt(sections, values)
    return filtered
