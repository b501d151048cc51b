"""FedCLAR (PerCom 2022) in float64, from its definition: every pair of members is compared."""

import numpy as np


class FedClar:
    """A server and its clients.

    Args:
        train: by client, its local training: parameters by name → those that it sends.
        counts: by client, its number of examples.
        start: parameters by name.
        head: names of the last layers.
        cluster_round, threshold: r_c, and the distance above which clusters stay apart.
    """

    def __init__(self, train, counts, start, *, head, cluster_round, threshold):
        self.train, self.counts, self.head = train, counts, head
        self.general = {name: np.array(value, np.float64) for name, value in start.items()}
        self.cluster_round, self.threshold = cluster_round, threshold
        self.rounds, self.clusters, self.models, self.heads = 0, [], [], {}

    def sent_to(self, client):
        for members, model in zip(self.clusters, self.models, strict=True):
            if client in members:
                return model
        return self.general

    def round(self, cohort):
        self.rounds += 1
        sent = {client: self.train[client](self.sent_to(client)) for client in cohort}
        if self.rounds < self.cluster_round:
            self.general = self._mean(sent, cohort)
            return
        known = {client for members in self.clusters for client in members}
        existing = len(self.clusters)
        new = [client for client in sorted(cohort) if client not in known]
        for client in new:
            self.heads[client] = np.concatenate([sent[client][name].ravel() for name in self.head])
        if existing:
            for client in new:
                self._join(client)
        else:
            self.clusters = self._agglomerate(new)
        for index, members in enumerate(self.clusters):
            counted = [
                c for c in sorted(cohort) if c in members and (index >= existing or c in known)
            ]
            if index >= existing:
                self.models.append(self._mean(sent, counted))
            elif counted:
                self.models[index] = self._mean(sent, counted)

    def _mean(self, sent, clients):
        total = sum(self.counts[client] for client in clients)
        return {
            name: sum(self.counts[c] * sent[c][name] for c in clients) / total
            for name in self.general
        }

    def _distance(self, some, others):
        """Mean over the pairs of 1 - cosine."""
        apart = []
        for one in some:
            for other in others:
                a, b = self.heads[one], self.heads[other]
                apart.append(1 - a @ b / np.linalg.norm(a) / np.linalg.norm(b))
        return np.mean(apart)

    def _agglomerate(self, clients):
        clusters = [[client] for client in clients]
        while len(clusters) > 1:
            apart, first, second = min(
                (self._distance(a, b), i, i + 1 + j)
                for i, a in enumerate(clusters)
                for j, b in enumerate(clusters[i + 1 :])
            )
            if apart >= self.threshold:
                break
            clusters[first] += clusters.pop(second)
        return clusters

    def _join(self, client):
        apart = [self._distance([client], members) for members in self.clusters]
        nearest = int(np.argmin(apart))
        if apart[nearest] < self.threshold:
            self.clusters[nearest].append(client)
        else:
            self.clusters.append([client])
