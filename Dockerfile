# Two images from one source: `coordinator` (no Java, no Spark), and `spark` (master, workers, drivers of jobs and pipelines).
#
#   docker build --target coordinator --tag datacoord/coordinator .
#   docker build --target spark --tag datacoord/spark .
#
# Everything Python comes from requirements/run.lock by hash.
ARG PYTHON_VERSION=3.13.9
ARG DEBIAN=bookworm

FROM python:${PYTHON_VERSION}-slim-${DEBIAN} AS source
WORKDIR /src
COPY . .

FROM source AS build-coordinator
RUN python tools/install_release.py /app --without-spark

FROM source AS build-spark
RUN python tools/install_release.py /app

FROM python:${PYTHON_VERSION}-slim-${DEBIAN} AS coordinator
RUN groupadd --system --gid 10001 datacoord \
 && useradd --system --uid 10001 --gid 10001 --home-dir /nonexistent --no-create-home datacoord
COPY --from=build-coordinator /app /app
ENV PATH=/app/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    DATACOORD_GRPC_HOST=0.0.0.0 \
    DATACOORD_WEB_HOST=0.0.0.0 \
    DATACOORD_LOG_FORMAT=json
USER 10001:10001
EXPOSE 13333 13334 13335
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s CMD ["datacoord", "health"]
ENTRYPOINT ["datacoord"]
CMD ["serve"]

FROM python:${PYTHON_VERSION}-slim-${DEBIAN} AS spark
# Java for Spark; git for the source that reads git histories.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends default-jre-headless git \
 && rm -rf /var/lib/apt/lists/*
RUN groupadd --system --gid 10001 datacoord \
 && useradd --system --uid 10001 --gid 10001 --home-dir /tmp --no-create-home datacoord
COPY --from=build-spark /app /app
ENV PATH=/app/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    JAVA_HOME=/usr/lib/jvm/default-java \
    PYSPARK_PYTHON=/app/bin/python \
    SPARK_LOCAL_DIRS=/tmp/spark \
    SPARK_WORKER_DIR=/tmp/spark-work
USER 10001:10001
ENTRYPOINT []
CMD ["datacoord", "land", "--help"]
