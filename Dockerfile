# One image for every part: the API, an instance, a Spark master or worker.
FROM node:22-slim AS dashboard
WORKDIR /opt/millrace
COPY dashboard/package.json dashboard/package-lock.json dashboard/
RUN npm --prefix dashboard ci --ignore-scripts --no-audit --no-fund
COPY clients/typescript/src clients/typescript/src
COPY dashboard dashboard
RUN npm --prefix dashboard run build

FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/millrace
COPY requirements-image.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements-image.lock
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY service service
COPY --from=dashboard /opt/millrace/service/dashboard service/dashboard
COPY spark_jobs spark_jobs
COPY migrations migrations
COPY clients/python/millrace_client clients/python/millrace_client
RUN pip install --no-cache-dir --no-deps . && python -c "from service.streams import kernels; kernels.warm()"
CMD ["millrace", "api", "--host", "0.0.0.0"]
