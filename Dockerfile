# One image for every part: the API, an instance, a Spark master or worker.
FROM python:3.11-slim-bookworm
RUN apt-get update && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/millrace
COPY requirements-image.lock ./
RUN pip install --no-cache-dir --require-hashes -r requirements-image.lock
COPY pyproject.toml README.md LICENSE ./
COPY service service
COPY spark_jobs spark_jobs
COPY migrations migrations
COPY clients/python/millrace_client clients/python/millrace_client
RUN pip install --no-cache-dir --no-deps . && python -c "from service.streams import kernels; kernels.warm()"
CMD ["millrace", "api", "--host", "0.0.0.0"]
